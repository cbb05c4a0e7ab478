"""Random operations, 30,000 of them: the engine's whole state equals the reference's after each of them.

`MINI_KV_OPERATIONS` sets another number (`.ci/run` takes 100,000). The seeds follow from the last commit's tree. The
first test is the claim; the others are about the driver itself, since a driver that cannot fail proves nothing.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.tests.random_driver import (
    CONFIGS,
    MISUSES,
    OPS_PER_EPISODE,
    Config,
    DriverFailure,
    Generator,
    Op,
    World,
    main,
    matrix,
    replay,
    run,
    run_episode,
    shrink,
)
from mini_kv.tests.reference import ContentError, ContentOracle, Group, Namespace, ReferenceCache
from mini_kv.tests.tree import drawn

NUM_OPERATIONS = int(os.environ.get("MINI_KV_OPERATIONS", "30000"))
CACHES = (*CONFIGS, *matrix())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("index", range(len(CACHES)), ids=lambda index: f"config{index}")
def test_engine_equals_the_reference(index: int) -> None:
    """Tables, queue, references, keys, hits, refusals, errors, statistics: whole lists, exact ids."""
    seed = drawn(f"driver {index}", 10**9)
    print(f"seeds from {seed}, {CACHES[index]}")
    run([CACHES[index]], seed, NUM_OPERATIONS // len(CACHES))


def test_debug_mode_never_cries_wolf() -> None:
    """The suspicious manager under the same operations: it finds nothing where there is nothing."""
    run([Config(block_size=1, num_blocks=8, debug=True), Config(num_blocks=12, debug=True)], 7, 3000)


def episode(config: Config, seed: int) -> list[Op]:
    world = World(config)
    generator = Generator(world, seed)
    ops = []
    for _ in range(OPS_PER_EPISODE):
        ops.append(generator.draw())
        world.apply(ops[-1])
    return ops


def test_one_seed_one_run() -> None:
    """I17: the same seed gives the same operations; the next seed gives others."""
    assert episode(CONFIGS[0], 3) == episode(CONFIGS[0], 3) != episode(CONFIGS[0], 4)


def situations(world: World, op: Op) -> Iterator[str]:
    """Apply the operation, if it makes sense, and yield what it was and which situations it met."""
    cached = set(world.ref.key_of)
    free = set(world.ref.free_queue)
    running = set(world.ref.tables)
    num_pinned = len(world.ref.pinned)
    if not world.apply(op):
        return
    yield from op[:2] if op[0] == "misuse" else op[:1]
    still_cached = set(world.ref.key_of)
    if op[0] == "allocate":
        refused = op[1] not in world.scheduled
        table = {block_id for ids in world.ref.tables.get(op[1], ()) for block_id in ids} - {0}
        if op[1] in running:
            met = {"refused later": refused}
        else:
            revived = table & free & cached & still_cached
            met = {"refused at first": refused, "revived": bool(revived) and not refused, "shared": bool(table - free)}
        yield from (what for what, happened in met.items() if happened)
        yield from ["evicted"] * (not cached <= still_cached)
    if op[0] in ("preempt", "abort"):
        yield from ["more than one had to go"] * (len(running - set(world.ref.tables)) > 1)
    yield from ["copied"] * (len(world.ref.pinned) > num_pinned)
    yield from ["duplicates"] * (len(world.kv.block_pool.cached_block_hash_to_block) < len(still_cached))


@pytest.mark.slow
def test_everything_happens() -> None:
    """All operations, all misuses, and the situations that bugs live in, within 20,000 operations."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(CONFIGS[seed % len(CONFIGS)])
        generator = Generator(world, seed)
        for _ in range(OPS_PER_EPISODE):
            seen.update(situations(world, generator.draw()))
    wanted = {*Generator.WEIGHTS, *MISUSES, "refused at first", "refused later", "revived", "shared", "evicted"}
    wanted |= {"more than one had to go", "duplicates", "copied"}
    assert {what for what in wanted if seen[what] < 10} == set()


class NoDequeue(BlockPool):
    """`touch` as one tutorial had it: the block gets a reference and stays in the free queue."""

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1


class NoDequeueConfig(Config):
    def make(self, **options: Any) -> KVCacheManager:
        return super().make(parts=KVCacheParts(make_pool=NoDequeue))


def test_a_failure_is_short_and_can_be_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The report has the seed, the command and a run of a few operations that fails on the bug and on nothing else."""
    with pytest.raises(DriverFailure) as failure:
        run([NoDequeueConfig()], 0, 20_000)
    ops = failure.value.ops
    report = str(failure.value)
    assert isinstance(replay(ops, NoDequeueConfig()), AssertionError)
    assert main(["--ops", "20000"], NoDequeueConfig) == 1
    assert capsys.readouterr().out == f"{report}\n"
    assert replay(ops, Config()) is None
    assert len(ops) <= 8  # publish a block, free it, find it again
    first_lines = report.splitlines()[:3]
    assert first_lines[0].startswith("seed ")
    assert first_lines[1].startswith("again: python -m mini_kv.tests.random_driver --seed ")
    assert f"{len(ops)} operations" in first_lines[2]
    assert all(f"        {op!r}," in report.splitlines() for op in ops)


def test_shrinking_keeps_only_what_matters() -> None:
    """A hundred operations, two of which fail together: these two are left, if there is time to look for them."""
    noise: list[Op] = [("evict", (1,)), ("reset",)] * 50
    one: Op = ("submit", "A", 0, (1, 1))
    two: Op = ("misuse", "no such misuse", "A")  # does nothing unless there is a request A
    ops = [*noise[:40], one, *noise[40:80], two, *noise[80:]]
    assert shrink(ops, Config()) == [one, two]
    assert shrink(ops, Config(), seconds=0.0) == ops


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One line when all is well; all caches in turn if asked."""
    assert main(["--seed", "5", "--ops", "700", "--block-size", "3", "--num-blocks", "9"]) == 0
    assert main(["--all", "--ops", "5000"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("700 operations, no difference, ")
    assert first.endswith("seeds from 5")
    assert second.startswith(f"5000 operations over {len(CONFIGS)} caches, no difference, ")


# The content oracle needs neither side's keys: it finds what engine and reference both get wrong.


class ForgetfulManager(FullAttentionManager):
    def withdraw_promises(self, *_: object) -> list[KVCacheBlock]:
        return []


class ForgetfulReference(ReferenceCache):
    def withdraw(self, *_: object) -> list[str]:
        return []


class ForgetfulConfig(Config):
    """Both sides leave the keys of an aborted step."""

    def make(self, **options: Any) -> KVCacheManager:
        return super().make(parts=KVCacheParts(manager_classes={FullAttentionSpec: ForgetfulManager}))

    def make_reference(self) -> ReferenceCache:
        return ForgetfulReference(self.num_blocks, self.all_groups(), enable_caching=self.enable_caching)


def test_the_oracle_sees_what_both_get_wrong() -> None:
    """They agree, and a request reads KV that was never written (I9)."""
    with pytest.raises(DriverFailure) as failure:
        run([ForgetfulConfig(num_documents=1, num_namespaces=1)], 0, 20_000)
    assert isinstance(failure.value.__cause__, ContentError)
    assert "I9: " in str(failure.value)
    assert [op[0] for op in failure.value.ops][-1] == "step"


class SaltlessManager(KVCacheManager):
    def new_request(self, *arguments: Any, **options: Any) -> Request:
        return super().new_request(*arguments, **{**options, "cache_salt": None})


class SaltlessReference(ReferenceCache):
    def blocks_under(self, group_id: int, prefix: Any) -> list[int]:
        return [block_id for block_id, held in self.key_of.items() if held[0] == group_id and held[1][1:] == prefix[1:]]


class KeylessWorld(World):
    def _compare_keys(self) -> None:
        """Compare nothing: the reference's keys have the salt in them."""


class SaltlessConfig(Config):
    """Both sides take every request for the same tenant's."""

    def make(self, **options: Any) -> KVCacheManager:
        return super().make(manager_class=SaltlessManager)

    def make_reference(self) -> ReferenceCache:
        return SaltlessReference(self.num_blocks, self.all_groups(), enable_caching=self.enable_caching)

    def make_world(self) -> World:
        return KeylessWorld(self)


def test_the_oracle_sees_a_salt_that_both_forget() -> None:
    """The memory knows whose KV it is."""
    with pytest.raises(DriverFailure) as failure:
        run([SaltlessConfig(num_documents=1, num_namespaces=3)], 0, 20_000)
    assert isinstance(failure.value.__cause__, ContentError)
    assert "tenant-" in str(failure.value)


@pytest.mark.parametrize(
    ("name", "table", "readers", "says"),
    [
        ("B", [1], [], "which A took"),
        ("A", [2], [], "which no request took"),
        ("A", [1], [1], "which another request holds"),
        ("A", [1], [], "already"),
    ],
)
def test_each_rule_of_writing_can_be_broken(name: str, table: list[int], readers: list[int], says: str) -> None:
    """I6: no write to another's block, a block that no request took, a block that others read, or a slot twice."""
    memory, pairs = ContentOracle(num_blocks=3, block_size=2), Group("full", 2)
    memory.take("A", [1])
    content = Namespace().prefix([7])
    memory.write("A", pairs, [1], 0, [content], [2])
    with pytest.raises(ContentError, match=f"I6: .*{says}"):
        memory.write(name, pairs, table, 0, [content], readers)


def test_reading_wants_exactly_the_own_prefix() -> None:
    """I9: no read of right tokens under another salt, of a slot that no request wrote, of a block given to another."""
    memory, pairs = ContentOracle(num_blocks=3, block_size=2), Group("full", 2)
    memory.take("A", [1])
    own = [Namespace().prefix([7]), Namespace().prefix([7, 8])]
    memory.write("A", pairs, [1], 0, own, [])
    memory.read("A", pairs, [1], own)
    salted = Namespace(cache_salt="s")
    with pytest.raises(ContentError, match="I9: "):
        memory.read("B", pairs, [1], [salted.prefix([7]), salted.prefix([7, 8])])
    memory.forget(pairs, [1], [1])
    memory.read("A", pairs, [1], own[:1])
    with pytest.raises(ContentError, match="I9: "):
        memory.read("A", pairs, [1], own)
    memory.take("B", [1])
    with pytest.raises(ContentError, match="I9: "):
        memory.read("A", pairs, [1], own[:1])


def test_an_episode_ends_with_nothing_held() -> None:
    """A cache that is never emptied would hide leaks: each episode drains (I14)."""
    run_episode(CONFIGS[2], seed=11, num_ops=100)
    world = World(CONFIGS[2])
    assert world.apply(("submit", "A", 0, (1, 1, 1, 1)))
    assert world.apply(("allocate", "A", 4, (), 0, "passed"))
    assert world.kv.usage > 0
    assert world.apply(("drain",))
    assert (world.kv.usage, world.live, world.kv.requests) == (0.0, {}, {})
