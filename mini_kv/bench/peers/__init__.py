"""The engines that are measured, and how each is brought in. None of the others is a dependency of this project.

`base` says what is asked of each; then one adapter per engine: `ours`, `vllm`, `nano_vllm`, `mini_sglang`.
"""

from pathlib import Path

from mini_kv.bench.peers.base import Cache, NoSuchWorkError, Peer, PeerError
from mini_kv.bench.peers.mini_sglang import MiniSGLang
from mini_kv.bench.peers.nano_vllm import NanoVLLM
from mini_kv.bench.peers.ours import MiniKV
from mini_kv.bench.peers.vllm import VLLM

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
"""How each of the others is brought in."""


def make_peer(name: str, path: Path | None = None) -> Peer:
    """Return the peer of that name; what is not installed is found at `path`. Raises `PeerError` if it is not there."""
    if name == MiniKV.name:
        return MiniKV()
    if name == VLLM.name:
        return VLLM()
    if name == NanoVLLM.name and path is not None:
        return NanoVLLM(path)
    if name == MiniSGLang.name and path is not None:
        return MiniSGLang(path)
    raise PeerError(f"there is no peer {name!r}")
