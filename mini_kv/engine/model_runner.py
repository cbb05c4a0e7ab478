"""The worker: turns the scheduler's plan into the logits of the requests that need a next token.

One step of three requests, from top to bottom:

    plan of the step      A: 5 tokens of its prompt     B: 1 token      C: 3 tokens, to the end of its prompt
    token_ids             a4 a5 a6 a7 a8                b17             c2 c3 c4
    positions             4  5  6  7  8                 17              2  3  4
    slot_mapping          the slot of each token's key and value: block table of A, B, C, once per group of layers
    model.forward         all nine at once; in each layer `PagedAttend` writes nine keys and attends over the blocks
    logits                                              of b17                of c4: what comes next in B and in C

The scheduler sends ids and numbers. The runner keeps each request's earlier tokens and blocks.

Source: vLLM `GPUModelRunner` (v1/worker/gpu_model_runner.py), in a much smaller form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mini_kv.attention.backends import paged_attention, write_kv
from mini_kv.attention.block_table import BlockTable, SlotMapping, compute_slot_mapping
from mini_kv.attention.kv_cache import copy_blocks
from mini_kv.attention.linear import StateCache, paged_linear_attention
from mini_kv.attention.metadata import AttentionMetadata, build_metadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.engine.interface import Attend, CausalLM
from mini_kv.engine.kv_memory import Layers, allocate_kv_cache_tensors


class PagedAttend:
    """Attention of one layer over blocks: write the new keys and values, then read all that are visible."""

    def __init__(self, layers: Layers, metadata: Sequence[AttentionMetadata], backend: str) -> None:
        """Take the memory and the group of each layer, the metadata of each group, and the backend that computes."""
        self.layers = layers
        self.metadata = metadata
        self.backend = backend

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """See `Attend`. All writes come first: a request may read a block that another one computes in this step."""
        kv_cache, group = self.layers[layer]
        metadata = self.metadata[group]
        if isinstance(kv_cache, StateCache):
            assert options.decay is not None  # so the model has said what it keeps
            return paged_linear_attention(query, key, value, options.decay, kv_cache, metadata)
        write_kv(key, value, kv_cache, metadata.slot_mapping, backend=self.backend)
        out, _ = paged_attention(query, kv_cache, metadata, options, backend=self.backend)
        return out


@dataclass(slots=True)
class CachedRequestState:
    """The runner's data of a request. Source: vLLM `CachedRequestState` (v1/worker/gpu_input_batch.py)."""

    token_ids: list[int]
    """Prompt and output so far."""
    row: int
    """Its row in every group's block table. It keeps the row until it ends or is preempted."""
    num_computed_tokens: int


@dataclass(slots=True)
class Batch:
    """One step's tokens, one request after the other."""

    request_ids: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    """New tokens of each request."""
    seq_lens: list[int] = field(default_factory=list)
    """Tokens of each request up to its last new one, computed ones included."""
    logits_request_ids: list[str] = field(default_factory=list)
    """The request of each row of logits: one row per request with all known tokens computed, one more per draft."""
    logits_indices: list[int] = field(default_factory=list)
    """The index in `token_ids` of each row of logits: the request's last known token, then its drafts."""


WrapAttend = Callable[[Attend, Batch], Attend]
"""Wraps the `Attend` of a step, for observers."""


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """The parts of a runner: the engine's own, or others with the same arguments."""

    make_block_table: Callable[[int, int, int], BlockTable] = BlockTable
    compute_slot_mapping: SlotMapping = compute_slot_mapping
    make_attend: Callable[[Layers, Sequence[AttentionMetadata], str], Attend] = PagedAttend
    """Makes the attention of one step, for all layers."""
    copy_blocks: Callable[[Sequence[Tensor], Sequence[tuple[int, int]]], None] = copy_blocks


class ModelRunner:
    """Keeps the KV memory and the block tables, and runs the model on the step's tokens."""

    def __init__(
        self,
        model: CausalLM,
        kv_cache_config: KVCacheConfig,
        *,
        max_num_seqs: int,
        max_model_len: int,
        backend: str = "auto",
        parts: RunnerParts | None = None,
        wrap_attend: WrapAttend | None = None,
        on_logits: Callable[[list[str], Tensor], None] | None = None,
    ) -> None:
        """Allocate the memory and empty tables.

        Args:
            model: an object with the methods of `CausalLM`.
            kv_cache_config: blocks and groups, with the model's names of layers.
            max_num_seqs: the most requests that run at once.
            max_model_len: tokens of the longest of them.
            backend: the implementation of attention. See `paged_attention`.
            parts: block tables, slots, attention and copies. `None`: the engine's own.
            wrap_attend: called once per step, with the step's attention.
            on_logits: an observer of `execute_model`. It is called with the result before the return.
        """
        self.model = model
        self.backend = backend
        self.parts = parts or RunnerParts()
        self.wrap_attend = wrap_attend
        self.on_logits = on_logits
        self.max_num_seqs = max_num_seqs
        self.kv_cache_tensors, self.layers = allocate_kv_cache_tensors(model, kv_cache_config)
        # On the host: rows change one at a time, and a step sends the rows that it needs to the device at once.
        self.block_tables = [
            self.parts.make_block_table(
                max_num_seqs, group.kv_cache_spec.num_blocks(max_model_len), group.kv_cache_spec.block_size
            )
            for group in kv_cache_config.kv_cache_groups
        ]
        self.requests: dict[str, CachedRequestState] = {}

    @torch.inference_mode()
    def execute_model(self, output: SchedulerOutput) -> tuple[list[str], Tensor]:
        """Compute one step and return logits, `[n, vocab_size]`, and the request of each row: see `Batch`.

        Changes the KV memory, the tables, and the data of the requests. The caller chooses the tokens and passes them
        to `append_token_ids`.
        """
        self._update_states(output)
        self.parts.copy_blocks(self.kv_cache_tensors, output.kv_cache_block_copies)
        batch = self._make_batch(output)
        attend = self.parts.make_attend(self.layers, self._make_metadata(batch), self.backend)
        if self.wrap_attend is not None:
            attend = self.wrap_attend(attend, batch)
        token_ids, positions = self._to_device(batch.token_ids), self._to_device(batch.positions)
        logits = self.model.forward(token_ids, positions, attend, self._to_device(batch.logits_indices))
        if self.on_logits is not None:
            self.on_logits(batch.logits_request_ids, logits)
        return batch.logits_request_ids, logits

    def append_token_ids(self, sampled_token_ids: Mapping[str, Sequence[int]]) -> None:
        """Record the chosen tokens of each request that needed one. With drafts it may be several."""
        for request_id, token_ids in sampled_token_ids.items():
            self.requests[request_id].token_ids += token_ids

    # What is remembered.

    def _update_states(self, output: SchedulerOutput) -> None:
        """Remove finished and preempted requests, add the new ones, and update the tables of the others.

        The same update may occur twice, because a failed step is planned again and lists these requests again.
        """
        new_req_ids = [new.request_id for new in output.scheduled_new_reqs]
        for request_id in (*output.finished_req_ids, *output.preempted_req_ids, *new_req_ids):
            self.requests.pop(request_id, None)
        free_rows = self._free_rows() if new_req_ids else []
        for new in output.scheduled_new_reqs:
            row = free_rows.pop()
            self.requests[new.request_id] = CachedRequestState(list(new.token_ids), row, new.num_computed_tokens)
            for table, block_ids in zip(self.block_tables, new.block_ids, strict=True):
                table.add_row(block_ids, row)
        copied = _first_targets(output.kv_cache_block_copies)
        for request_id, new_block_ids, num_computed_tokens in output.scheduled_cached_reqs:
            state = self.requests[request_id]
            state.num_computed_tokens = num_computed_tokens
            if copied:
                self._follow_copy(state, copied)
            if new_block_ids:
                for table, block_ids in zip(self.block_tables, new_block_ids, strict=True):
                    table.append_row(block_ids, state.row)

    def _free_rows(self) -> list[int]:
        """Return the rows that no request has, in reverse order. Computed each time, so that no row is lost."""
        taken = {state.row for state in self.requests.values()}
        return [row for row in reversed(range(self.max_num_seqs)) if row not in taken]

    def _follow_copy(self, state: CachedRequestState, copied: Mapping[int, int]) -> None:
        """If the block of the request's next slot is copied, put the copy in the request's row."""
        for table in self.block_tables:
            column, offset = divmod(state.num_computed_tokens, table.block_size)
            if offset > 0:
                block_id = int(table.block_table[state.row, column])
                table.block_table[state.row, column] = copied.get(block_id, block_id)

    # The step's batch.

    def _make_batch(self, output: SchedulerOutput) -> Batch:
        """Put the step's tokens in a row, in the scheduler's order."""
        batch = Batch()
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            state = self.requests[request_id]
            begin = state.num_computed_tokens
            end = begin + num_tokens
            drafts = output.scheduled_spec_decode_tokens.get(request_id, [])
            batch.request_ids.append(request_id)
            batch.rows.append(state.row)
            batch.token_ids += state.token_ids[begin:end] + drafts
            batch.positions += range(begin, end)
            batch.query_lens.append(num_tokens)
            batch.seq_lens.append(end)
            if end == len(state.token_ids) + len(drafts):
                num_rows = 1 + len(drafts)
                batch.logits_request_ids += [request_id] * num_rows
                batch.logits_indices += range(len(batch.token_ids) - num_rows, len(batch.token_ids))
        return batch

    def _make_metadata(self, batch: Batch) -> list[AttentionMetadata]:
        """Return the metadata of the step, one per group: all layers of a group share it."""
        longest = max(batch.seq_lens, default=0)
        metadata = []
        for table in self.block_tables:
            num_columns = -(-longest // table.block_size)
            rows = table.block_table[batch.rows, :num_columns].to(self.model.device)
            metadata.append(
                build_metadata(
                    batch.query_lens, batch.seq_lens, rows, table.block_size, self.parts.compute_slot_mapping
                )
            )
        return metadata

    def _to_device(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.model.device)


def _first_targets(pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the target of the copy of the parent's half-filled block, by the block's old id.

    A copy has a source and a target but no request. Forked requests are sent with their whole tables, so only their
    parent's row has to be updated. The parent is before them in the batch, so its copy is the
    first of that block.
    """
    targets: dict[int, int] = {}
    for source, target in pairs:
        targets.setdefault(source, target)
    return targets
