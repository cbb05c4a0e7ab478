"""The learner's slots, writes and attention in place of the engine's."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from mini_kv.attention.backends import paged_attention, write_kv
from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.linear import StateCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.course.given.kernels.interpreter import interpreted
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.engine.kv_memory import Layers
from mini_kv.engine.model_runner import PagedAttend, RunnerParts


def runner_parts(own: OwnParts) -> RunnerParts:
    """Return the parts of the runner."""
    attends = (own.write, own.decode, own.prefill, own.write_kernel, own.decode_kernel) != (None,) * 5
    parts = {
        "make_block_table": own.block_table,
        "compute_slot_mapping": own.slot_mapping,
        "make_attend": partial(OwnAttend, own) if attends else None,
    }
    return RunnerParts(**{name: part for name, part in parts.items() if part is not None})


class OwnAttend:
    """An `Attend` over blocks whose parts may be the learner's.

    A step with one new token per request runs the interpreted kernels of lab-10. Any other step has a part of a prompt
    and runs lab-08 and lab-09. The labs' attention sees all tokens and has only a scale as option. So a layer with a
    window writes with the labs' code and attends with the engine's.
    """

    def __init__(self, own: OwnParts, layers: Layers, metadata: Sequence[AttentionMetadata], backend: str) -> None:
        """Take the learner's parts, and what the engine's own `PagedAttend` takes."""
        self._own = own
        self._layers = layers
        self._metadata = metadata
        self._backend = backend

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """See `Attend`."""
        kv_cache, group = self._layers[layer]
        if isinstance(kv_cache, StateCache):
            return PagedAttend(self._layers, self._metadata, self._backend)(layer, query, key, value, options)
        metadata = self._metadata[group]
        uses_kernels = metadata.max_query_len == 1
        has_kernel = self._own.write_kernel is not None or self._own.decode_kernel is not None
        is_plain = (options.sliding_window, options.logits_soft_cap, options.sinks) == (None, None, None)
        with interpreted() if uses_kernels and has_kernel else nullcontext():
            self._write(key, value, kv_cache, metadata.slot_mapping, uses_kernels)
            if is_plain and uses_kernels and self._own.decode_kernel is not None:
                out = torch.zeros_like(query)
                self._own.decode_kernel(
                    out,
                    query,
                    kv_cache.k_cache,
                    kv_cache.v_cache,
                    metadata.block_tables,
                    metadata.seq_lens,
                    options.scale_for(kv_cache.head_size),
                )
                return out
        if not is_plain:
            out, _ = paged_attention(query, kv_cache, metadata, options, backend=self._backend)
            return out
        return self._attend(query, kv_cache, metadata, options)

    def _write(
        self, key: Tensor, value: Tensor, kv_cache: PagedKVCache, slot_mapping: Tensor, uses_kernels: bool
    ) -> None:
        write = self._own.write
        if uses_kernels and self._own.write_kernel is not None:
            write = self._own.write_kernel
        if write is None:
            write_kv(key, value, kv_cache, slot_mapping, backend=self._backend)
        else:
            write(key, value, kv_cache.k_cache, kv_cache.v_cache, slot_mapping)

    def _attend(
        self, query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions
    ) -> Tensor:
        """Return attention by lab-09. The engine computes requests whose part (decode or prefill) the lab lacks."""
        decode, prefill = self._own.decode, self._own.prefill
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
