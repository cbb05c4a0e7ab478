"""A worker without a model. It records the content of each slot, and detects a read of another request's KV.

It uses only the steps' data, so it also detects a scheduler that leaves data out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mini_kv.core.sched.output import NewRequestData, SchedulerOutput
from mini_kv.course.labkit.fixture import LabFailure, same


class RememberingWorker:
    """Computes the steps of `mini_kv.story.step_loop.run_step`. Raises `LabFailure` for an impossible step."""

    def __init__(self, block_size: int, next_token: Callable[[Sequence[int]], int]) -> None:
        """Start with empty slots.

        Args:
            block_size: tokens per block.
            next_token: returns the model's token after these tokens.
        """
        self.block_size, self.next_token = block_size, next_token
        self.rows: dict[str, NewRequestData] = {}
        """The data of each request, kept up to date."""
        self.tokens: dict[str, list[int]] = {}
        """The tokens of each request: those of its prompt and the sampled ones."""
        self.slots: dict[int, list[int]] = {}
        """For each slot all tokens up to the one whose keys and values it contains."""

    def __call__(self, step: SchedulerOutput) -> dict[str, list[int]]:
        """Write the step's tokens, read the KV that attention reads, and return the new tokens."""
        self._listen(step)
        ends = {name: self._end(self.rows[name], count) for name, count in step.num_scheduled_tokens.items()}
        for name, end in ends.items():
            row = self.rows[name]
            for position in range(row.num_computed_tokens, end):
                self.slots[self._slot(row, position)] = self.tokens[name][: position + 1]
        for name, end in ends.items():
            self._read(self.rows[name], end)
        through = [name for name, end in ends.items() if end == len(self.tokens[name])]
        for name in through:
            self.tokens[name].append(self.next_token(self.tokens[name]))
        return {name: self.tokens[name][-1:] for name in through}

    def _listen(self, step: SchedulerOutput) -> None:
        for name in (*step.preempted_req_ids, *step.finished_req_ids):
            self.rows.pop(name, None)
            self.tokens.pop(name, None)
        for new in step.scheduled_new_reqs:
            self.rows[new.request_id] = replace(new, block_ids=(list(new.block_ids[0]),))
            self.tokens[new.request_id] = list(new.token_ids)
        for request_id, new_block_ids, num_computed_tokens in step.scheduled_cached_reqs:
            if request_id not in self.rows:
                raise LabFailure(f"{request_id}, whom the worker does not know", "told in full", "told what is new")
            row = replace(self.rows[request_id], num_computed_tokens=num_computed_tokens)
            row.block_ids[0].extend(new_block_ids[0] if new_block_ids else [])
            self.rows[request_id] = row
        got = sorted(step.scheduled_cached_reqs.req_ids + [new.request_id for new in step.scheduled_new_reqs])
        want = sorted(step.num_scheduled_tokens)
        if not same(want, got):
            raise LabFailure("requests that the worker is told to run", want, got)

    def _end(self, row: NewRequestData, num_tokens: int) -> int:
        """Return the computed tokens of the request after this step. It must have them, and slots for them."""
        num_known, end = len(self.tokens[row.request_id]), row.num_computed_tokens + num_tokens
        if end > num_known:
            known = f"{row.num_computed_tokens} of {num_known} tokens are computed"
            what = f"tokens of {row.request_id} that the step computes; the worker is told that {known}"
            why = "a hit is computed already; tokens of the step itself count only when it is done"
            raise LabFailure(what, f"at most {num_known - row.num_computed_tokens}", num_tokens, why)
        if end > len(row.block_ids[0]) * self.block_size:
            what = f"blocks that the worker knows of {row.request_id}"
            raise LabFailure(what, f"enough for {end} tokens", row.block_ids[0])
        return end

    def _read(self, row: NewRequestData, end: int) -> None:
        for position in range(end):
            found, past = self.slots.get(self._slot(row, position)), self.tokens[row.request_id][: position + 1]
            if found != past:
                where = f"its token {position}, in block {row.block_ids[0][position // self.block_size]}"
                what = f"whose keys and values {row.request_id} reads for {where}"
                why = "tokens that count as computed must have been computed, for exactly these tokens"
                got = "none: nothing was written there" if found is None else found
                raise LabFailure(what, f"those of token {past[-1]} after {past[:-1]}", got, why)

    def _slot(self, row: NewRequestData, position: int) -> int:
        return row.block_ids[0][position // self.block_size] * self.block_size + position % self.block_size
