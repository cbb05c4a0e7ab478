"""lab-11: who runs next? Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-11
    $env:LAB_IMPL="starter"; pytest labs/lab-11          (Windows, PowerShell)
"""

from collections.abc import Mapping, Sequence

from mini_kv.core.errors import SchedulerError  # noqa: F401  # you raise it
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request, RequestStatus  # noqa: F401  # RUNNING, PREEMPTED, FINISHED_STOPPED, ...
from mini_kv.core.sched import scheduler as engine
from mini_kv.core.sched.output import EngineCoreOutput, NewRequestData, SchedulerOutput
from mini_kv.course import todo


class Scheduler(engine.Scheduler):
    """The engine's scheduler, with your rules for the requests that run.

    You need, and the engine keeps for you:

    - `self.running`            a list of requests in the order in which they were admitted
    - `self.waiting`            the waiting queue: `prepend_request(request)`, and `peek_request()` and `pop_request()`
                                at its front, which raise `IndexError` if it is empty, so check `if self.waiting` first
    - `self.requests`           all requests that are not finished, under their ids
    - `self.kv_cache_manager`   `hit, num_hit_tokens = get_computed_blocks(request)`, `allocate_slots(request, ...)`,
                                `free(request)`, and `block_pool`
    - `self.config`             the limits `max_num_batched_tokens` and `max_num_seqs`
    - `self.admission`          `reserved_blocks(block_pool, request)`: the number of blocks that `allocate_slots` has
                                to keep free if the request is admitted, or None if it must not be admitted

    and on a request `num_tokens` (known), `num_computed_tokens` (with KV), `status`, `max_slots`, `stop_token_ids`.

    `add_request` and `finish_requests`, which aborts, are the engine's. This lab leaves out draft tokens, priorities,
    forks, letting smaller requests pass, an abort while the worker has the step, and the engine's `self.step` with its
    `SchedulerError`. Do not call `super()` or the engine's methods with an underscore, which would do your work. The
    exception is `_finish`:

        self._finish(request, status)     sets the status and deletes the request, but not its blocks or its place in
                                          `self.running`
    """

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: how many tokens each request computes, at most `max_num_batched_tokens` in all.

            known       0 .............................. num_tokens
            computed    0 ...... num_computed_tokens |
                                                     |<- lacking: it gets these, as far as the budget goes

        Begin with `step = self._begin_step()`, and return it at the end. `_add_running` and `_add_newcomer` put a
        request into it. The running requests are first, in their order, then the waiting ones, in theirs. Each gets the
        tokens that it lacks, or the rest of the budget. `kv_cache_manager.allocate_slots` returns `None` without room.

        - **No room for a running request**: the last of `self.running` is preempted (`_preempt_request`), then the
          next, until there is room or the request is preempted itself. `step.preempted_req_ids` has their ids in this
          order. They are not in the step. In a step with a preemption no waiting request is admitted.
        - **A waiting request** lacks all known tokens after its hit. Known are also the tokens of its answer before a
          preemption. It is admitted by `allocate_slots(request, num_new_tokens, num_hit_tokens, hit,
          reserved_blocks=..., full_sequence_must_fit=True)`. There must be room for all of it, not only a first piece.
        - **Reserved blocks**: if others run, `reserved_blocks` is the number that `self.admission` returns. If it
          returns None, the request is not admitted. If no request runs, no block is reserved.
        - **An admitted request** is removed from `self.waiting`, is the last of `self.running`, is RUNNING, and has
          computed its hit and no more. At most `max_num_seqs` run. **A refused request** is unchanged, and so are all
          after it.

        Example, blocks of 4, a budget of 4: A (9 tokens, 8 computed) runs, B (8 tokens, 4 of them cached) waits. The
        step is A 1, B 3. B has computed 4 now, and 7 after `update_from_output`. Its last token is in the next step.
        """
        todo("lab-11", "Scheduler.schedule", "what does each request lack, and which one is preempted without room?")

    def _preempt_request(self, request: Request) -> None:
        """Free all blocks of a running request, and make it the first of the waiting ones.

        Its blocks are free but cached: until they are reused, a lookup finds them. It is removed from `self.running`,
        is PREEMPTED, and is the first of `self.waiting`. It has 0 computed tokens. Its known tokens, prompt and answer,
        are unchanged. `num_preemptions` grows by 1, on the request and on the scheduler.

        Example, blocks of 4: B has 13 tokens, 12 computed, in blocks 4 5 6, and C waits. Afterwards B lacks 13 tokens,
        the queue is B C, and 6 5 4 are the last in the free queue. A lookup for B would find 12 tokens.
        """
        todo(
            "lab-11",
            "Scheduler._preempt_request",
            "what does the request lose, what does it keep, and where does it wait?",
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        """Process the worker's results: count computed tokens, append new ones, end finished requests.

        `scheduler_output.num_scheduled_tokens` has the requests of the step and their numbers of tokens. If the step
        computes the last known token of a request, `sampled_token_ids` must have exactly one token for it. For another
        request of the step it must have none: no entry, or an empty one. It has no tokens for other ids. If a number is
        wrong, raise `SchedulerError(message)` before any request changes. Otherwise, in the order of the step:

        - The step's tokens count as computed.
        - A new token is appended (`request.append_output_token_ids(token_id)`), and there is an `EngineCoreOutput` for
          it. It is known now, and the next step computes it.
        - A token of `stop_token_ids` ends its request as FINISHED_STOPPED. A request with more tokens than `max_slots`
          ends as FINISHED_LENGTH_CAPPED, since its last token needs no slot. A stop token in last place is a stop. The
          output has the reason: `EngineCoreOutput("A", [16], finish_reason=status.value)`.
        - A request that has ended is removed from `self.running`, its blocks are freed, and `_finish` is called.

        Example: A (8 tokens, 4 computed) was in the step with 3 tokens, B (5 tokens, 4 computed) with 1. B's 9 is
        sampled: A has 7 computed and no new token, B has 6 tokens, 5 of them computed. `[EngineCoreOutput("B", [9])]`.
        """
        todo(
            "lab-11", "Scheduler.update_from_output", "which requests have a new token, and which of them end with it?"
        )

    # Given: the record of your decisions for the worker.

    def _begin_step(self) -> SchedulerOutput:
        """Return a step without requests. It has the ids of the requests that ended since the last one."""
        step = SchedulerOutput(finished_req_ids=self._finished_req_ids)
        self._finished_req_ids = []
        return step

    def _add_running(
        self, step: SchedulerOutput, request: Request, num_new_tokens: int, new_blocks: KVCacheBlocks
    ) -> None:
        """Record a request that the worker knows, with its new blocks only."""
        block_ids = new_blocks.get_block_ids()
        step.scheduled_cached_reqs.add(request.request_id, block_ids, request.num_computed_tokens)
        step.num_scheduled_tokens[request.request_id] = num_new_tokens

    def _add_newcomer(self, step: SchedulerOutput, request: Request, num_new_tokens: int) -> None:
        """Record a request that the worker does not know, with all tokens, all blocks and its computed tokens."""
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        step.scheduled_new_reqs.append(
            NewRequestData(request.request_id, list(request.token_ids), block_ids, request.num_computed_tokens)
        )
        step.num_scheduled_tokens[request.request_id] = num_new_tokens
