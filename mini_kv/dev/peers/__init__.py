"""The measured engines, and the import of each. None of the others is a dependency of this project.

`base` has the common verbs. Then follows one adapter per engine: `ours`, `vllm`, `nano_vllm`, `mini_sglang`.
"""

from pathlib import Path

from mini_kv.dev.peers.base import Cache, NoSuchWorkError, Peer, PeerError
from mini_kv.dev.peers.mini_sglang import MiniSGLang
from mini_kv.dev.peers.nano_vllm import NanoVLLM
from mini_kv.dev.peers.ours import MiniKV
from mini_kv.dev.peers.vllm import VLLM

__all__ = [
    "PEERS",
    "VLLM",
    "Cache",
    "MiniKV",
    "MiniSGLang",
    "NanoVLLM",
    "NoSuchWorkError",
    "Peer",
    "PeerError",
    "make_peer",
]

PEERS = {
    VLLM.name: "pip install vllm==0.33.0 in an environment of its own",
    NanoVLLM.name: "--nano-vllm CHECKOUT",
    MiniSGLang.name: "--mini-sglang CHECKOUT",
}
"""The function that imports each other engine."""


def make_peer(name: str, path: Path | None = None) -> Peer:
    """Return the peer of that name. `path`: a checkout, if it is not installed. Raises `PeerError` if it is missing."""
    if name == MiniKV.name:
        return MiniKV()
    if name == VLLM.name:
        return VLLM()
    if name == NanoVLLM.name and path is not None:
        return NanoVLLM(path)
    if name == MiniSGLang.name and path is not None:
        return MiniSGLang(path)
    raise PeerError(f"there is no peer {name!r}")
