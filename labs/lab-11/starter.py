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
    """The engine's scheduler, with your rules for who runs.

    You need, and the engine keeps for you:

    - `self.running`            a list of requests in the order in which they were admitted
    - `self.waiting`            the line: `peek_request()` and `pop_request()` at its front, which raise `IndexError` on
                                an empty line, so ask `if self.waiting` first; `prepend_request(request)`
    - `self.requests`           all requests that are not finished, under their ids
    - `self.kv_cache_manager`   `hit, num_hit_tokens = get_computed_blocks(request)`, `allocate_slots(request, ...)`,
                                `free(request)`, and `block_pool`
    - `self.config`             the limits `max_num_batched_tokens` and `max_num_seqs`
    - `self.admission`          `reserved_blocks(block_pool, request)`: how many blocks `allocate_slots` is to keep free
                                if it enters; None if it may not

    and on a request `num_tokens` (known), `num_computed_tokens` (with KV), `status`, `max_slots`, `stop_token_ids`.

    `add_request` and `finish_requests`, which aborts, are the engine's. So is what this lab leaves out: guessed tokens,
    priorities, forks, queue-jumping, and an abort while the worker has the step. Do the work here; `super()` and the
    engine's methods with an underscore would do it for you, all but `_finish`:

        self._finish(request, status)     sets the status and forgets the request; blocks and batch are not its business
    """

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: who computes how many tokens, in at most `max_num_batched_tokens` over all.

            known       0 .............................. num_tokens
            computed    0 ...... num_computed_tokens |
                                                     |<- lacking: it gets these, as far as the budget goes

        Begin with `step = self._begin_step()`, and return it in the end; `_add_running` and `_add_newcomer` put a
        request into it. First those who run are served, in their order, then those who wait, in theirs. Each gets what
        it lacks, or what the budget has left. `kv_cache_manager.allocate_slots` says `None` if there is no room.

        - **No room for one that runs**: the last of `self.running` gives way (`_preempt_request`), and the next, until
          there is room or it has given way itself. Their ids are in `step.preempted_req_ids`, in this order; they are
          not in the step. In a step in which a request gave way, no newcomer enters.
        - **A newcomer** lacks all known tokens but its hit: the answer before a preemption counts as known. It enters
          with `allocate_slots(request, num_new_tokens, num_hit_tokens, hit, reserved_blocks=...,
          full_sequence_must_fit=True)`. It must fit whole, so that none enters on the strength of a first piece.
        - **Blocks kept back**: if others run, `reserved_blocks` is what `self.admission` says, and if that is None,
          it may not enter. If none runs, the engine is idle, and nothing is kept back.
        - **Who has entered** has left the line, is the last of the batch, is RUNNING, and has computed its hit and no
          more. At most `max_num_seqs` run. **Who cannot enter** is untouched, and so are all after it.

        Example, blocks of 4, a budget of 4: A (9 tokens, 8 computed) runs; B (8 tokens, 4 of them cached) waits. The
        step is A 1, B 3. B has computed 4 now, and 7 only when the results come. Its last token waits for the next
        step.
        """
        todo("lab-11", "Scheduler.schedule", "first those who run, then those who wait")

    def _preempt_request(self, request: Request) -> None:
        """Take all blocks from a running request and send it back to the line, as the next to be served.

        Afterwards its blocks are free, and cached still: unless others need the memory, it will find them again. It is
        out of the batch, PREEMPTED, and first in the line, since it came before all that wait. It has computed nothing.
        What it knows, prompt and answer, it still knows. The preemption is counted, on the request and on the scheduler
        (`num_preemptions`).

        Example, blocks of 4: B has 13 tokens, 12 computed, in blocks 4 5 6; C waits. Afterwards B lacks 13 tokens, the
        line is B C, and 6 5 4 are the last in the free queue. A lookup for B would find 12 tokens.
        """
        todo("lab-11", "Scheduler._preempt_request", "from the batch to the front of the line, without its blocks")

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        """Take in what the worker has done: progress, a new token for each request that is through, who has ended.

        A request is through when the step computes the last of its known tokens. Then, and only then, the worker has
        sampled one token for it.

        `scheduler_output.num_scheduled_tokens` says who is in the step, with how many tokens. Raises
        `SchedulerError(message)`, with nothing changed on any request, unless those in the step that are through have
        one token each, and the others in it none (no entry, or an empty one). Otherwise, in the order of the step:

        - the step's tokens are computed;
        - a new token is appended (`request.append_output_token_ids(token_id)`), and there is an `EngineCoreOutput` for
          it; it is known now, and will be computed by the next step;
        - a token of `stop_token_ids` ends its request as FINISHED_STOPPED; a request with more tokens than `max_slots`
          ends as FINISHED_LENGTH_CAPPED, since its last token is for its user and needs no slot. A stop token in last
          place counts as a stop. The output says so: `EngineCoreOutput("A", [16], finish_reason=status.value)`;
        - who has ended is in the batch no more, holds no blocks, and is forgotten (`_finish`).

        Example: A (8 tokens, 4 computed) was in the step with 3 tokens, B (5 tokens, 4 computed) with 1. B's 9 is
        sampled: A has 7 computed and no new token, B has 6 tokens, 5 of them computed. `[EngineCoreOutput("B", [9])]`.
        """
        todo("lab-11", "Scheduler.update_from_output", "progress, new tokens, and who has ended")

    # Given: what the worker is told.

    def _begin_step(self) -> SchedulerOutput:
        """Return a step without requests; it tells the worker who has ended since the last one."""
        step = SchedulerOutput(finished_req_ids=self._finished_req_ids)
        self._finished_req_ids = []
        return step

    def _add_running(
        self, step: SchedulerOutput, request: Request, num_new_tokens: int, new_blocks: KVCacheBlocks
    ) -> None:
        """Note a request that the worker knows: it is told only the new blocks."""
        block_ids = new_blocks.get_block_ids()
        step.scheduled_cached_reqs.add(request.request_id, block_ids, request.num_computed_tokens)
        step.num_scheduled_tokens[request.request_id] = num_new_tokens

    def _add_newcomer(self, step: SchedulerOutput, request: Request, num_new_tokens: int) -> None:
        """Note a request that the worker does not know: it is told all tokens, all blocks and what is computed."""
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        step.scheduled_new_reqs.append(
            NewRequestData(request.request_id, list(request.token_ids), block_ids, request.num_computed_tokens)
        )
        step.num_scheduled_tokens[request.request_id] = num_new_tokens
