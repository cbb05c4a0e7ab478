"""The measured engines, and the import of each. None of the others is a dependency of this project.

`base` has the common verbs. Then follows one adapter per engine: `ours`, `vllm`, `nano_vllm`.
"""

from mini_kv.dev.peers.base import Cache, NoSuchWorkError, Peer, PeerError
from mini_kv.dev.peers.nano_vllm import NanoVLLM
from mini_kv.dev.peers.ours import MiniKV
from mini_kv.dev.peers.vllm import VLLM

__all__ = [
    "PEERS",
    "VLLM",
    "Cache",
    "MiniKV",
    "NanoVLLM",
    "NoSuchWorkError",
    "Peer",
    "PeerError",
]

PEERS = {
    VLLM.name: "pip install vllm==0.33.0 in an environment of its own",
    NanoVLLM.name: "--nano-vllm CHECKOUT",
}
"""How each other engine is brought in."""
