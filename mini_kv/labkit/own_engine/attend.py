"""The learner's slots, writes and attention between the model and its past."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.backends import paged_attention, write_kv
from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.engine.interface import Attend
from mini_kv.engine.model_runner import PagedAttend
from mini_kv.labkit.kernels.interpreter import interpreted


class OwnAttend:
    """An `Attend` over blocks whose parts may be the learner's.

    A step in which everybody has one new token goes through the kernels of lab-10, interpreted; any other, which has a
    piece of a prompt in it, through lab-08 and lab-09.
    """

    def __init__(self, own: Mapping[str, Any], paged: Attend, positions: Sequence[int]) -> None:
        """Take the parts, and what the engine's own `Attend` knows of this step."""
        assert isinstance(paged, PagedAttend)
        self._own = own
        self._layers = paged.layers
        self._backend = paged.backend
        self._metadata = list(paged.metadata)
        if "lab-08 compute_slot_mapping" in own:
            tensor = torch.tensor(positions, dtype=torch.int64)
            block_sizes = {group: kv_cache.block_size for kv_cache, group in self._layers}
            self._metadata = [
                replace(
                    metadata,
                    slot_mapping=own["lab-08 compute_slot_mapping"](
                        metadata.query_start_loc, tensor, metadata.block_tables, block_sizes[group]
                    ),
                )
                for group, metadata in enumerate(self._metadata)
            ]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """See `Attend`."""
        kv_cache, group = self._layers[layer]
        metadata = self._metadata[group]
        uses_kernels = metadata.max_query_len == 1
        with interpreted() if uses_kernels and any(name.startswith("lab-10") for name in self._own) else nullcontext():
            self._write(key, value, kv_cache, metadata.slot_mapping, uses_kernels)
            if uses_kernels and "lab-10 paged_attention_decode" in self._own:
                out = torch.zeros_like(query)
                self._own["lab-10 paged_attention_decode"](
                    out,
                    query,
                    kv_cache.k_cache,
                    kv_cache.v_cache,
                    metadata.block_tables,
                    metadata.seq_lens,
                    options.scale_for(kv_cache.head_size),
                )
                return out
        return self._attend(query, kv_cache, metadata, options)

    def _write(
        self, key: Tensor, value: Tensor, kv_cache: PagedKVCache, slot_mapping: Tensor, uses_kernels: bool
    ) -> None:
        write = self._own.get("lab-08 reshape_and_cache")
        if uses_kernels:
            write = self._own.get("lab-10 reshape_and_cache", write)
        if write is None:
            write_kv(key, value, kv_cache, slot_mapping, backend=self._backend)
        else:
            write(key, value, kv_cache.k_cache, kv_cache.v_cache, slot_mapping)

    def _attend(
        self, query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions
    ) -> Tensor:
        """Let lab-09 look back for those with one new token, and for those with several; the engine for the rest."""
        decode, prefill = (self._own.get(f"lab-09 {name}") for name in ("paged_attention_ref", "paged_prefill_ref"))
        if decode is None or prefill is None:
            out, _ = paged_attention(query, kv_cache, metadata, options, backend=self._backend)
        else:
            out = torch.zeros_like(query)
        k_cache, v_cache, scale = kv_cache.k_cache, kv_cache.v_cache, options.scale_for(kv_cache.head_size)
        starts: list[int] = metadata.query_start_loc.tolist()
        seq_lens: list[int] = metadata.seq_lens.tolist()
        single = [request for request in range(len(seq_lens)) if starts[request + 1] - starts[request] == 1]
        if decode is not None and single:
            rows = [starts[request] for request in single]
            tables, lens = metadata.block_tables[single], metadata.seq_lens[single]
            out[rows] = decode(query[rows], k_cache, v_cache, tables, lens, scale)[0]
        if prefill is not None:
            for request, seq_len in enumerate(seq_lens):
                new = slice(starts[request], starts[request + 1])
                if request not in single:
                    row = metadata.block_tables[request]
                    out[new] = prefill(query[new], k_cache, v_cache, row, seq_len, scale)[0]
        return out
