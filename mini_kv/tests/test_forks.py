"""Forks whose parent holds full blocks without a key: both publish them later, and the second time is harmless."""

import pytest

from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.tests.strict_worker import StrictWorker, alone, next_token


class Engine:
    """A scheduler and a strict worker, on full attention in groups of these block sizes."""

    def __init__(self, *block_sizes: int, num_blocks: int = 40, max_num_seqs: int = 4) -> None:
        specs = [FullAttentionSpec(block_size) for block_size in block_sizes]
        groups = tuple(KVCacheGroupSpec((f"blocks of {spec.block_size}",), spec) for spec in specs)
        self.kv = DebugKVCacheManager(KVCacheManager(KVCacheConfig(num_blocks, groups)))
        self.scheduler = Scheduler(self.kv, SchedulerConfig(max_num_seqs=max_num_seqs))
        self.worker = StrictWorker(specs, num_blocks, max_num_seqs)
        self.said: dict[str, list[int]] = {}

    def add(self, name: str, tokens: list[int], max_tokens: int) -> None:
        self.scheduler.add_request(self.kv.new_request(name, tokens), max_tokens=max_tokens)

    def fork(self, name: str, child: str, token: int, max_tokens: int) -> list[int]:
        """Let a child go on with this token from what the parent has computed; return the child's prompt."""
        parent = self.scheduler.requests[name]
        tokens = [*parent.token_ids[: parent.num_computed_tokens], token]
        assert self.scheduler.fork_request(name, self.kv.new_request(child, tokens), max_tokens=max_tokens)
        return tokens

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.worker.take(output, {request.request_id: None for request in self.scheduler.running})
        for out in self.scheduler.update_from_output(output, self.worker.run(output)):
            self.said.setdefault(out.request_id, []).extend(out.new_token_ids)

    def finish(self) -> dict[str, list[int]]:
        """Run to the end; return what each request has said."""
        while self.scheduler.has_unfinished_requests:
            self.step()
        check_invariants(self.kv)
        assert self.kv.usage == 0.0
        return self.said


@pytest.mark.parametrize("num_prompt_tokens", range(1, 10))
@pytest.mark.parametrize("block_sizes", [(2, 4), (4, 2), (1, 4), (3, 2), (2, 2)])
def test_two_samples_of_a_prompt_on_groups_of_unequal_blocks(block_sizes: tuple[int, ...], num_prompt_tokens: int):
    """A small block is full before the large one beside it ends, and gets its key only then, from both samples."""
    engine = Engine(*block_sizes)
    prompt = [0, 1, 2, 0, 2, 1, 1, 0, 2][:num_prompt_tokens]
    engine.add("A", prompt, max_tokens=9)
    engine.step()
    first = engine.said["A"][0]
    child = engine.fork("A", "B", (first + 1) % 3, max_tokens=8)
    assert engine.finish() == {"A": alone(prompt, 9), "B": alone(child, 8)}


@pytest.mark.parametrize("block_sizes", [(4,), (2, 4)])
@pytest.mark.parametrize("num_drafts", range(1, 8))
def test_a_fork_after_drafts_that_were_right(block_sizes: tuple[int, ...], num_drafts: int):
    """Accepted drafts fill blocks that had no key when they were planned."""
    engine = Engine(*block_sizes)
    prompt = [0, 1, 2, 0, 2]
    engine.add("A", prompt, max_tokens=16)
    engine.step()
    drafts = alone([*prompt, *engine.said["A"]], num_drafts)
    engine.scheduler.update_draft_token_ids("A", drafts)
    engine.step()
    assert len(engine.said["A"]) == num_drafts + 2
    assert engine.scheduler.requests["A"].num_computed_tokens == len(prompt) + num_drafts + 1
    child = engine.fork("A", "B", 1, max_tokens=8)
    assert engine.finish() == {"A": alone(prompt, 16), "B": alone(child, 8)}


def test_blocks_that_accepted_drafts_filled_are_found_by_the_next_turn():
    engine = Engine(4)
    prompt = [0, 1, 2, 0, 2, 1]
    engine.add("A", prompt, max_tokens=7)
    engine.step()
    engine.scheduler.update_draft_token_ids("A", alone([*prompt, *engine.said["A"]], 5))
    engine.step()
    said = engine.finish()["A"]
    turn = [*prompt, *said, 0, 1]
    _, num_hit = engine.kv.get_computed_blocks(engine.kv.new_request("B", turn))
    assert num_hit == 12  # of 13 tokens, all but the last are computed


def test_a_fork_may_publish_again_what_its_parent_has_published():
    """Even if a key in the middle has been evicted meanwhile: the fork gives it back, and leaves the others alone."""
    groups = tuple(KVCacheGroupSpec((f"blocks of {size}",), FullAttentionSpec(size)) for size in (2, 8))
    kv = KVCacheManager(KVCacheConfig(20, groups))
    parent = kv.new_request("A", range(7))
    assert kv.allocate_slots(parent, 6) is not None
    parent.num_computed_tokens = 6
    child = kv.new_request("B", range(7))
    kv.fork(parent, child)
    child.num_computed_tokens = 6
    for request in (parent, child):
        request.append_output_token_ids(7)
    assert kv.allocate_slots(parent, 2) is not None
    kv.evict_blocks([kv.get_block_ids("B")[0][1]])
    assert kv.allocate_slots(child, 2) is not None
    for name in "AB":
        assert [block.block_hash is None for block in kv.get_blocks(name).blocks[0]] == [False] * 4
    check_invariants(kv)


def test_forks_of_forks_on_unequal_blocks():
    engine = Engine(2, 4, max_num_seqs=8)
    prompt = [0, 1, 2]
    engine.add("A", prompt, max_tokens=12)
    engine.step()
    wanted = {"A": alone(prompt, 12)}
    for number, parent in enumerate(["A", "B0", "A", "B1"]):
        child = engine.fork(parent, f"B{number}", number % 3, max_tokens=6)
        wanted[f"B{number}"] = alone(child, 6)
        engine.step()
    assert engine.finish() == wanted
    assert next_token(prompt) == wanted["A"][0]
