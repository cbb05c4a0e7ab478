"""The two calls of a layer: write keys and values, then attend. The backend is named, or chosen with a reason.

reference     one query and head at a time, float64          the oracle
plain         one request at a time, float64                 a slow version of torch, in 60 lines
torch         CPU, or any device of torch
triton        CUDA; on a CPU under TRITON_INTERPRET=1
flashinfer    CUDA, where the package is installed
flash_attn    CUDA, where the package is installed
"""

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor

from mini_kv.attention.argument_checks import check_attention, check_write
from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import write_kv_torch
from mini_kv.core.errors import ConfigError

PACKAGES = {"triton": "triton", "flashinfer": "flashinfer", "flash_attn": "flash_attn"}
"""The package that a backend needs besides torch."""
MODULES = {
    "reference": "reference",
    "plain": "plain",
    "torch": "torch_backend",
    "triton": "triton_backend",
    "flashinfer": "flashinfer_backend",
    "flash_attn": "flash_attn_backend",
}


class Backend(Protocol):
    """The functions of a backend's module."""

    def obstacle(self, query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
        """Return the reason why the backend cannot do the call, or `None` if it can."""

    def attend(
        self, query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
    ) -> Tensor:
        """Write the result of `paged_attention` to `out` and return the log-sum-exp."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend and the reason for its choice."""

    name: str
    reason: str


def paged_attention(
    query: Tensor,
    kv_cache: PagedKVCache,
    metadata: AttentionMetadata,
    options: AttentionOptions | None = None,
    *,
    backend: str = "auto",
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each query's attention over the keys and values that it sees, and its log-sum-exp.

    Reads only the visible tokens' slots. Other blocks, and slots after a request's last token, have no effect.

    Args:
        query: `[num_tokens, num_heads, head_size]`, the requests' new tokens packed one after the other. Query head h
            reads KV head `h // group`, where `group` query heads share one KV head: 0 1 2 3 read 0 0 1 1.
        kv_cache: all keys and values of the batch, the new ones included (`write_kv` first). In the query's
            dtype, or int8 or fp8.
        metadata: the requests of these queries.
        options: the kind of attention. `None` is causal and full.
        backend: the implementation. "auto" is the result of `choose_backend`.
        out: written and returned, if given. Rows after the last request's tokens, as in a padded batch, are
            unchanged. The log-sum-exp of these rows is undefined.

    Returns:
        `[num_tokens, num_heads, head_size]` in the query's dtype, and `[num_tokens, num_heads]` in float32, natural
        logarithm.

    Raises:
        ConfigError: shapes, dtypes or devices that cannot work, or a backend that cannot do this. Nothing has run then.
    """
    options = options or AttentionOptions()
    check_attention(query, kv_cache, metadata, options, out)
    if backend == "auto":
        backend = choose_backend(query, kv_cache, options).name
    _refuse(obstacle(backend, query, kv_cache, options), backend)
    if out is None:
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    return out, load(backend).attend(query, kv_cache, metadata, options, out)


def write_kv(
    key: Tensor, value: Tensor, kv_cache: PagedKVCache, slot_mapping: Tensor, *, backend: str = "auto"
) -> None:
    """Write each token's key and value to its slot, in the cache's own form. A token with slot -1 is not written.

    Args:
        key: `[num_tokens, num_kv_heads, head_size]`.
        value: the same shape. For a cache of one plane pass the key again, which is written once.
        kv_cache: written in place, scales included.
        slot_mapping: `[num_tokens]`, int64.
        backend: "triton" is one kernel. Every other name writes with torch. "auto" is triton on CUDA.

    Raises:
        ConfigError: shapes that cannot work. Nothing has been written then.
    """
    check_write(key, value, kv_cache, slot_mapping)
    if backend == "auto":
        backend = choose_backend(key, kv_cache, AttentionOptions()).name
    if backend == "triton":
        _refuse(obstacle(backend, key, kv_cache, AttentionOptions()), backend)
        from mini_kv.attention.triton_backend import write_kv_triton

        write_kv_triton(key, value, kv_cache, slot_mapping)
    else:
        write_kv_torch(key, value, kv_cache, slot_mapping)


def choose_backend(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> Choice:
    """Return the backend that "auto" selects for such a call, and the reason.

    >>> from mini_kv.attention.kv_cache import allocate_kv_cache
    >>> choose_backend(torch.zeros(3, 4, 8), allocate_kv_cache(2, 4, 4, 8), AttentionOptions())
    Choice(name='torch', reason='the tensors are on cpu, where torch is the fastest')
    """
    device = query.device.type
    if device != "cuda":
        return Choice("torch", f"the tensors are on {device}, where torch is the fastest")
    reason = obstacle("triton", query, kv_cache, options)
    if reason is None:
        return Choice("triton", "the tensors are on cuda, where our kernels read each block in place")
    return Choice("torch", f"triton cannot do this: {reason}")


def obstacle(name: str, query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return why the backend cannot do the call, in words, or `None` if it can."""
    if name not in MODULES:
        return f"there is no such backend; there are {', '.join(MODULES)}"
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        return f"the package {PACKAGES[name]} is not installed"
    return load(name).obstacle(query, kv_cache, options)


def _refuse(reason: str | None, backend: str) -> None:
    if reason is not None:
        raise ConfigError(f"backend {backend!r} cannot do this: {reason}")


@cache
def load(name: str) -> Backend:
    """Import the backend's module. Its package must be installed."""
    return cast(Backend, importlib.import_module(f"mini_kv.attention.{MODULES[name]}"))
