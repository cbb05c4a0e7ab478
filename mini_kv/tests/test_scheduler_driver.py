"""Random steps of the scheduler: each read finds the reader's own KV, every request ends, and says what it would alone.

`MINI_KV_OPERATIONS` sets the number of steps (a tenth of it). The seeds follow from the last commit's tree. The other
tests are about the driver: it must be able to fail.
"""

import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.copy_on_write import CopyOnWrite
from mini_kv.core.kv_cache_interface import FullAttentionSpec, MambaSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.output import CachedRequestData, EngineCoreOutput, NewRequestData, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tests.scheduler_driver import OPERATIONS, Run, main, run
from mini_kv.tests.scheduler_matrix import CONFIGS, Config
from mini_kv.tests.strict_worker import SchedulerFailure, StrictWorker, alone, checksums, next_token, salt_seed
from mini_kv.tests.tree import drawn

NUM_STEPS = int(os.environ.get("MINI_KV_OPERATIONS", "30000")) // 10


@cache
def lives(index: int) -> list[Run]:
    """Run one engine of the matrix for its share of the steps."""
    seed = drawn(f"scheduler driver {index}", 10**9)
    print(f"seeds from {seed}, {CONFIGS[index]}")
    return run(CONFIGS[index], seed, NUM_STEPS // len(CONFIGS))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("index", range(len(CONFIGS)), ids=lambda index: f"config{index}")
def test_every_read_finds_the_right_kv_and_every_request_ends(index: int) -> None:
    """Forks, drafts, chunks, windows, states, preemptions, aborts, abandoned steps, tenants (I9, I14, I15, I18)."""
    assert sum(life.num_steps for life in lives(index)) >= NUM_STEPS // len(CONFIGS)


@pytest.mark.timeout(900)
def test_everything_happens() -> None:
    """All operations, and requests that finish, are preempted, copied and found again; few are refused."""
    done: Counter[str] = Counter()
    for index in range(len(CONFIGS)):
        for life in lives(index):
            done += life.done
            done["preempted"] += life.scheduler.num_preemptions
            done["hit"] += life.kv.prefix_cache_stats.hits
    wanted = (*OPERATIONS, "finished", "aborted", "forked", "refused", "preempted", "hit", "copied")
    assert [name for name in wanted if done[name] < NUM_STEPS // 200] == []
    assert done["refused"] < (done["add"] + done["fork"]) / 3


def test_one_seed_one_run() -> None:
    """I17: the same seed gives the same steps and preemptions."""
    first, second, other = (run(CONFIGS[0], seed, 200)[0] for seed in (4, 4, 5))
    assert (first.done, first.document, first.orders) == (second.done, second.document, second.orders)
    assert first.done != other.done


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Operations, configurations, seconds and seed when all is well."""
    assert main(["--seed", "5", "--steps", "80", "--matrix", "--check-every", "4"]) == 0
    out = capsys.readouterr().out
    assert "nothing wrong" in out
    assert "seeds from 5, invariants every 4 steps" in out


def test_the_model_depends_on_all_tokens_and_on_the_tenant() -> None:
    """One token changed at the very beginning changes what is said after many: else a wrong read could go unseen."""
    assert alone((0, 1, 2), 12) != alone((1, 1, 2), 12) != alone((1, 1, 2), 12, "tenant 1")
    assert alone((0, 1, 2), 3) == [next_token([0, 1, 2]), *alone((0, 1, 2, next_token([0, 1, 2])), 2)]


# Wrong schedulers and caches, which the driver must find.


class KeepsProgress(Scheduler):
    def _preempt_request(self, request: Request) -> None:
        num_computed_tokens = request.num_computed_tokens
        super()._preempt_request(request)
        request.num_computed_tokens = num_computed_tokens


class ForgetsToFree(Scheduler):
    def _take_blocks(self, request: Request) -> None:
        self.running.remove(request)


class PreemptsTheOldest(Scheduler):
    def _victim(self) -> Request:
        return self.running[0]


class CountsWrongDrafts(Scheduler):
    def update_from_output(self, scheduler_output: SchedulerOutput, sampled_token_ids: Any) -> list[EngineCoreOutput]:
        known = {name: self.requests[name] for name in scheduler_output.num_scheduled_tokens if name in self.requests}
        before = {name: request.num_computed_tokens for name, request in known.items()}
        outputs = super().update_from_output(scheduler_output, sampled_token_ids)
        for name in known.keys() & self.requests.keys():
            known[name].num_computed_tokens = before[name] + scheduler_output.num_scheduled_tokens[name]
        return outputs


class ForgetsWhoWasPreempted(Scheduler):
    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        output.preempted_req_ids = []
        return output


class TellsOnlyOnce(Scheduler):
    def abandon_step(self) -> None:
        output = self.step.output if self.step else SchedulerOutput()
        output.finished_req_ids.clear()
        super().abandon_step()


class EndsStepsAnywhere(Scheduler):
    def _aligned_split(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        return num_new_tokens


class KeepsAbandonedPromises(KVCacheManager):
    def withdraw_all_promises(self) -> None:
        self.confirm_promises()


class IgnoresSalts(KVCacheManager):
    def new_request(self, request_id: str, token_ids: Sequence[int], **options: Any) -> Request:
        request = super().new_request(request_id, token_ids, **{**options, "cache_salt": None})
        request.cache_salt = options.get("cache_salt")
        return request


class NeverCopies(CopyOnWrite):
    def shared_blocks(self, request_id: str, num_computed_tokens: int) -> dict[int, KVCacheBlock]:
        return {}


class WritesToSharedBlocks(KVCacheManager):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.copy_on_write = NeverCopies(self.coordinator, self.block_pool)


WRONG = (
    KeepsProgress, ForgetsToFree, PreemptsTheOldest, CountsWrongDrafts, ForgetsWhoWasPreempted, TellsOnlyOnce,
    EndsStepsAnywhere, KeepsAbandonedPromises, IgnoresSalts, WritesToSharedBlocks,
)  # fmt: skip


def run_all(*configs: Config, **parts: Any) -> None:
    for index, config in enumerate(configs):
        run(config, index, 250, **parts)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrong", WRONG)
def test_the_driver_finds_what_is_wrong(wrong: type) -> None:
    """Progress, blocks, wrong drafts, promises or ids kept; the oldest preempted; no state left; tenants mixed."""
    parts = {"scheduler_class": wrong} if issubclass(wrong, Scheduler) else {"manager_class": wrong}
    with pytest.raises(SchedulerFailure):
        run_all(Config(abort_rate=0.0), Config(abandon_rate=0.2), *CONFIGS, **parts)


# The worker by itself.

TWO_TOKENS = NewRequestData("A", [0, 1], ([1],), 0)


def worker() -> StrictWorker:
    """Return a worker that knows A, of which two tokens are computed in block 1."""
    this = StrictWorker([FullAttentionSpec(4)], num_blocks=6, max_num_seqs=2)
    this.take(SchedulerOutput(scheduled_new_reqs=[TWO_TOKENS]), {"A": None})
    assert this.run(SchedulerOutput(num_scheduled_tokens={"A": 2})) == {"A": [next_token([0, 1])]}
    return this


def take_and_run(this: StrictWorker, output: SchedulerOutput, running: dict[str, str | None]) -> None:
    this.take(output, running)
    this.run(output)


def goes_on(num_computed_tokens: int = 2, **more: Any) -> SchedulerOutput:
    cached = CachedRequestData(["A"], [None], [num_computed_tokens])
    return SchedulerOutput(scheduled_cached_reqs=cached, num_scheduled_tokens={"A": 1}, **more)


@pytest.mark.parametrize(
    ("output", "running", "says"),
    [
        (SchedulerOutput(scheduled_new_reqs=[TWO_TOKENS]), "A", "said to be new, but the worker still knows it"),
        (SchedulerOutput(scheduled_cached_reqs=CachedRequestData(["B"], [([2],)], [1])), "AB", "does not know it"),
        (goes_on(1), "A", "1 tokens of A are said to be computed, the worker has computed 2"),
        (SchedulerOutput(), "", "the worker was never told"),
        (
            SchedulerOutput(scheduled_new_reqs=[NewRequestData(name, [0], ([2],), 0) for name in "BC"]),
            "ABC", "3 rows are in use, there are 2",
        ),
        (goes_on(kv_cache_block_copies=[(1, 2), (2, 3)]), "A", "depends on their order"),
        (
            SchedulerOutput(
                scheduled_new_reqs=[NewRequestData("B", [0, 1, 2], ([1],), 2)], num_scheduled_tokens={"B": 1}
            ),
            "AB", "reads block 1, which is not its own KV",
        ),
        (
            SchedulerOutput(
                scheduled_new_reqs=[NewRequestData("B", [0] * 5, ([2],), 0)], num_scheduled_tokens={"B": 5}
            ),
            "AB", "has no block at 1",
        ),
    ],
)  # fmt: skip
def test_each_rule_of_the_worker_can_be_broken(output: SchedulerOutput, running: str, says: str) -> None:
    this = worker()
    salts = {"B": "tenant 1"}  # so that B's KV is not A's, although the tokens are
    with pytest.raises(SchedulerFailure, match=says):
        take_and_run(this, output, {name: salts.get(name) for name in running})


def test_a_state_is_read_before_any_is_written() -> None:
    """A state that another request of the same step would have to write first is not there yet."""
    spec = MambaSpec(2, shapes=((1,),), dtypes_bytes=(2,))
    this = StrictWorker([spec], num_blocks=6, max_num_seqs=4)
    both = SchedulerOutput(
        scheduled_new_reqs=[NewRequestData("A", [0, 1], ([1],), 0), NewRequestData("B", [0, 1, 2], ([1, 2],), 2)],
        num_scheduled_tokens={"A": 2, "B": 1},
    )
    this.take(both, {"A": None, "B": None})
    with pytest.raises(SchedulerFailure, match="B reads block 1, which is not its state"):
        this.run(both)
    this.memory[1][0] = checksums([0, 1], salt_seed(None))[-1]
    this.written_by[1] = 0
    assert this.run(both) == {"A": [next_token([0, 1])], "B": [next_token([0, 1, 2])]}
