"""A worker that knows only what the scheduler tells it, and holds the scheduler to every word of that.

In place of a model stands a plain rule: the next token is a checksum of all tokens before it. The
memory holds, for each slot, the checksum of the tokens up to the one whose KV lies there. A step writes its tokens and
then reads everything that attention would read: a request that finds another one's KV in its slots fails at once.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.sched.output import NewRequestData, SchedulerOutput

NUM_TOKENS = 3
"""Size of the vocabulary: small, so that different prompts begin alike and drafts are often right."""

_BYTES = [bytes([token]) for token in range(256)]


class SchedulerFailure(AssertionError):
    """Something that must not happen did."""


def salt_seed(cache_salt: str | None) -> int:
    """Return the checksum that stands before the first token: other tenants have other KV for the same tokens."""
    return zlib.crc32(b"" if cache_salt is None else b"salt:" + cache_salt.encode())


def checksums(tokens: Iterable[int], before: int) -> list[int]:
    """Return for each token the checksum of all tokens up to it, `before` standing for those that come first."""
    sums = []
    for token in tokens:
        before = zlib.crc32(_BYTES[token], before)
        sums.append(before)
    return sums


def next_token(tokens: Sequence[int], cache_salt: str | None = None) -> int:
    """Return what the "model" says after these tokens: 0, 1 or 2."""
    return checksums(tokens, salt_seed(cache_salt))[-1] % NUM_TOKENS


def alone(tokens: Sequence[int], max_tokens: int, cache_salt: str | None = None) -> list[int]:
    """Return the output of a request that has the machine to itself: the obvious way."""
    (last,) = checksums(tokens, salt_seed(cache_salt))[-1:]
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(last % NUM_TOKENS)
        (last,) = checksums(output[-1:], last)
    return output


def first_read(spec: KVCacheSpec, position: int) -> int:
    """Return the first token that the token at `position` reads in layers of this kind."""
    match spec:
        case SlidingWindowSpec():
            return max(0, position - (spec.sliding_window - 1))
        case ChunkedLocalAttentionSpec():
            return position - position % spec.attention_chunk_size
        case _:
            return 0


@dataclass(slots=True)
class _Known:
    """What the worker remembers of a request."""

    tokens: list[int]
    sums: list[int]
    """The checksum up to each token."""
    tables: tuple[list[int], ...]
    num_computed_tokens: int


class StrictWorker:
    """Takes steps as they are told, and raises `SchedulerFailure` for one that no real worker could carry out."""

    def __init__(self, specs: Sequence[KVCacheSpec], num_blocks: int, max_num_seqs: int) -> None:
        self.specs = specs
        self.no_block_ids: tuple[list[int], ...] = tuple([] for _ in specs)
        self.max_num_seqs = max_num_seqs
        self.known: dict[str, _Known] = {}
        longest = max(spec.block_size for spec in specs)
        self.memory: list[list[int]] = [[0] * longest for _ in range(num_blocks)]
        """The checksum in each slot of each block."""
        self.written_by: list[int] = [-1] * num_blocks
        """The group that wrote to each block last."""

    def take(self, output: SchedulerOutput, running: Mapping[str, str | None]) -> None:
        """Forget, meet and follow requests as the step says.

        Args:
            output: the step.
            running: the requests that ran when the step was planned, with their salts: a model does not see these,
                but the memory does.
        """
        for name in (*output.finished_req_ids, *output.preempted_req_ids):
            self.known.pop(name, None)  # one that was taken back before any step named it is not known
        for new in output.scheduled_new_reqs:
            self._meet(new, running[new.request_id])
        copies = dict(reversed(output.kv_cache_block_copies))  # the parent stands first in the batch
        for name, new_block_ids, num_computed_tokens in output.scheduled_cached_reqs:
            known = self.known.get(name)
            if known is None:
                raise SchedulerFailure(f"{name} goes on, but the worker does not know it")
            if num_computed_tokens != known.num_computed_tokens:
                message = f"{num_computed_tokens} tokens of {name} are said to be computed"
                raise SchedulerFailure(f"{message}, the worker has computed {known.num_computed_tokens}")
            for spec, table, new_ids in zip(self.specs, known.tables, new_block_ids or self.no_block_ids, strict=True):
                column, offset = divmod(num_computed_tokens, spec.block_size)
                if copies and offset > 0:
                    table[column] = copies.get(table[column], table[column])
                table += new_ids
        if len(self.known) > self.max_num_seqs:
            raise SchedulerFailure(f"{len(self.known)} rows are in use, there are {self.max_num_seqs}")
        for name in self.known.keys() - running.keys():
            raise SchedulerFailure(f"{name} does not run any more, and the worker was never told")

    def _meet(self, new: NewRequestData, cache_salt: str | None) -> None:
        if new.request_id in self.known:
            raise SchedulerFailure(f"{new.request_id} is said to be new, but the worker still knows it")
        sums = checksums(new.token_ids, salt_seed(cache_salt))
        tables = tuple(list(table) for table in new.block_ids)
        self.known[new.request_id] = _Known(list(new.token_ids), sums, tables, new.num_computed_tokens)

    def run(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Copy, write the step's tokens, read what attention reads; return the new tokens."""
        self._copy(output.kv_cache_block_copies)
        batch: list[tuple[str, _Known, list[int], int]] = []
        for name, num_tokens in output.num_scheduled_tokens.items():
            known = self.known[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            sums = known.sums + checksums(drafts, known.sums[-1]) if drafts else known.sums
            batch.append((name, known, sums, known.num_computed_tokens + num_tokens))
        for group, spec in enumerate(self.specs):
            if isinstance(spec, MambaSpec):
                self._pass_states(group, spec, batch)
            else:
                self._attend(group, spec, batch)
        sampled = {}
        for name, known, sums, end in batch:
            known.num_computed_tokens = end
            if end >= len(known.tokens):
                drafts = output.scheduled_spec_decode_tokens.get(name, ())
                sampled[name] = self._accept(known, sums[len(known.tokens) - 1 : end], drafts)
        return sampled

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        targets = [target for _, target in copies]
        if len(set(targets)) < len(targets) or not set(targets).isdisjoint(source for source, _ in copies):
            raise SchedulerFailure(f"the outcome of the copies {copies} depends on their order")
        for source, target in copies:
            self.memory[target] = list(self.memory[source])
            self.written_by[target] = self.written_by[source]

    def _attend(self, group: int, spec: KVCacheSpec, batch: Sequence[tuple[str, _Known, list[int], int]]) -> None:
        """Write the keys and values of the whole batch, then read: so it is in each layer of a forward pass."""
        size = spec.block_size
        for name, known, sums, end in batch:
            for position in range(known.num_computed_tokens, end):
                block = self._block(group, name, known, position // size)
                self.written_by[block] = group
                self.memory[block][position % size] = sums[position]
        for name, known, sums, end in batch:
            first = first_read(spec, known.num_computed_tokens)
            for column in range(first // size, -(-end // size)):
                low, high = max(first, column * size), min(end, (column + 1) * size)
                block = self._block(group, name, known, column)
                found = self.memory[block][low - column * size : high - column * size]
                if found != sums[low:high] or self.written_by[block] != group:
                    raise SchedulerFailure(f"I9: in group {group} {name} reads block {block}, which is not its own KV")

    def _pass_states(self, group: int, spec: KVCacheSpec, batch: Sequence[tuple[str, _Known, list[int], int]]) -> None:
        """Read the state that each request starts from, then write the one that it ends with."""
        for name, known, sums, _ in batch:
            last = known.num_computed_tokens - 1
            if last >= 0:
                block = self._block(group, name, known, last // spec.block_size)
                if self.memory[block][0] != sums[last] or self.written_by[block] != group:
                    raise SchedulerFailure(f"I9: in group {group} {name} reads block {block}, which is not its state")
        for name, known, sums, end in batch:
            block = self._block(group, name, known, (end - 1) // spec.block_size)
            self.written_by[block] = group
            self.memory[block][0] = sums[end - 1]

    def _block(self, group: int, name: str, known: _Known, column: int) -> int:
        table = known.tables[group]
        if column >= len(table) or table[column] == 0:
            raise SchedulerFailure(f"in group {group} {name} has no block at {column}: {table}")
        return table[column]

    def _accept(self, known: _Known, sums: Sequence[int], drafts: Sequence[int]) -> list[int]:
        """Return the drafts that are right, and one token more; `sums` are those of the last known token and drafts."""
        accepted: list[int] = []
        for place, checksum in enumerate(sums):
            accepted.append(checksum % NUM_TOKENS)
            if place < len(drafts) and drafts[place] != accepted[-1]:
                break
        known.num_computed_tokens -= len(sums) - len(accepted)
        known.sums += checksums(accepted, known.sums[-1])
        known.tokens += accepted
        return accepted
