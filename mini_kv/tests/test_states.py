"""Layers with states under the scheduler: a prompt's steps end where its state can be shared."""

from collections.abc import Sequence
from typing import Any

import pytest

from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tools.traces.prompt_hashes import Prompt
from mini_kv.tools.traces.runners import Setup, sequential


def state(block_size: int) -> MambaSpec:
    return MambaSpec(block_size, shapes=((1,),), dtypes_bytes=(2,))


class Engine:
    """A scheduler with groups of these specs, and a worker whose model always says 7."""

    def __init__(self, *specs: KVCacheSpec, retention: int | None = None, caching: bool = True, **limits: Any) -> None:
        groups = tuple(KVCacheGroupSpec((f"group {i}",), spec) for i, spec in enumerate(specs))
        self.kv = KVCacheManager(KVCacheConfig(200, groups, retention), enable_caching=caching)
        self.scheduler = Scheduler(self.kv, SchedulerConfig(**limits))

    def add(self, name: str, tokens: Sequence[int], max_tokens: int = 1) -> Request:
        request = self.kv.new_request(name, tokens)
        self.scheduler.add_request(request, max_tokens=max_tokens)
        return request

    def step(self) -> dict[str, int]:
        """Run one step; return the tokens of each request in it."""
        output = self.scheduler.schedule()
        tokens = output.num_scheduled_tokens
        requests = self.scheduler.requests
        through = [
            name for name in tokens if requests[name].num_computed_tokens + tokens[name] == requests[name].num_tokens
        ]
        self.scheduler.update_from_output(output, {name: [7] for name in through})
        return tokens

    def serve(self, name: str, tokens: Sequence[int], max_tokens: int = 1) -> tuple[int | None, list[int]]:
        """Serve one request to its end; return the tokens of its hit, and how many each step computed."""
        request = self.add(name, tokens, max_tokens)
        steps = []
        while self.scheduler.has_unfinished_requests:
            steps.append(self.step()[name])
        return request.num_cached_tokens, steps


# The same prompt again.


@pytest.mark.parametrize("retention", [None, 0, 64], ids=["all keys", "vLLM's default", "an interval"])
def test_the_same_prompt_finds_all_whole_blocks_before_its_last_token(retention: int | None) -> None:
    """vLLM's numbers: golden scenario "prompts of 31, 32, 33 and 48 tokens, each twice"."""
    found = []
    for num_tokens in (31, 32, 33, 48):
        engine = Engine(FullAttentionSpec(16), state(16), retention=retention)
        _, first = engine.serve("first", range(num_tokens))
        num_hit, second = engine.serve("second", range(num_tokens))
        found.append((first, num_hit, second))
    assert found == [
        ([16, 15], 16, [15]),
        ([16, 16], 16, [16]),
        ([32, 1], 32, [1]),
        ([32, 16], 32, [16]),
    ]


MIXES: tuple[tuple[KVCacheSpec, ...], ...] = (
    (FullAttentionSpec(4),),
    (state(4),),
    (FullAttentionSpec(4), state(4)),
    (FullAttentionSpec(4), state(4), SlidingWindowSpec(4, sliding_window=6)),
    (FullAttentionSpec(2), state(8)),
    (FullAttentionSpec(8), state(4)),
    (FullAttentionSpec(4), state(6), ChunkedLocalAttentionSpec(4, attention_chunk_size=8)),
)


@pytest.mark.parametrize(
    "specs", MIXES, ids=lambda specs: " ".join(f"{type(s).__name__}:{s.block_size}" for s in specs)
)
@pytest.mark.parametrize("retention", [None, 0])
@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 7}, {"long_prefill_token_threshold": 3}])
def test_no_mix_of_groups_misses_the_same_prompt(
    specs: tuple[KVCacheSpec, ...], retention: int | None, limits: dict[str, Any]
) -> None:
    """I12, no silent 0 %: with room for all, the second time every whole block but that of the last token is found."""
    for num_tokens in range(1, 40):
        engine = Engine(*specs, retention=retention, **limits)
        engine.serve("first", range(num_tokens))
        size = engine.kv.block_size
        assert engine.serve("second", range(num_tokens))[0] == (num_tokens - 1) // size * size, num_tokens


def test_the_answer_is_found_too_unless_only_the_ends_of_prompts_are_kept() -> None:
    """Four turns of a chat; the answers have 20 tokens. vLLM's numbers: golden scenarios "a chat of four turns ..."."""
    hits: dict[int | None, list[int | None]] = {}
    for retention in (None, 0, 64):
        engine = Engine(FullAttentionSpec(16), state(16), retention=retention)
        hits[retention] = []
        chat: list[int] = []
        for turn, num_tokens in enumerate((130, 30, 30, 30)):
            chat += range(1000 * turn, 1000 * turn + num_tokens)
            hits[retention].append(engine.serve(f"turn {turn}", chat, max_tokens=20)[0])
            chat += [7] * 20
    assert hits == {None: [0, 144, 192, 240], 0: [0, 128, 176, 224], 64: [0, 128, 192, 224]}


# Prompts that part.


@pytest.mark.parametrize("retention", [None, 0])
def test_the_second_of_three_leaves_its_state_where_they_part(retention: int | None) -> None:
    """Full attention has the shared 40 tokens of the first; there is no state at 32 before the second stops there."""
    engine = Engine(FullAttentionSpec(16), state(16), retention=retention)
    served = [engine.serve(f"{own}", [*range(40), *range(own, own + 30)]) for own in (100, 200, 300)]
    assert served == [(0, [64, 6]), (0, [32, 32, 6]), (32, [32, 6])]


# Steps.


def test_two_with_one_prompt_take_turns() -> None:
    """The second waits until the first has computed the state that it goes on from."""
    engine = Engine(FullAttentionSpec(16), state(16))
    engine.add("A", range(33), max_tokens=3)
    second = engine.add("B", range(33), max_tokens=3)
    assert [engine.step() for _ in range(4)] == [{"A": 32}, {"A": 1, "B": 1}, {"A": 1, "B": 1}, {"A": 1, "B": 1}]
    assert second.num_cached_tokens == 32


def test_a_step_too_small_for_a_block_ends_blocks_all_the_same() -> None:
    engine = Engine(FullAttentionSpec(16), state(16), max_num_batched_tokens=10)
    assert engine.serve("first", range(35)) == (0, [10, 6, 10, 6, 3])
    assert engine.serve("second", range(35)) == (32, [3])


def test_a_newcomer_waits_while_the_step_has_no_room_for_a_block() -> None:
    """A decodes and leaves 15 tokens; B's first block takes 16."""
    engine = Engine(FullAttentionSpec(16), state(16), max_num_batched_tokens=16)
    engine.add("A", range(4), max_tokens=3)
    assert engine.step() == {"A": 4}
    engine.add("B", range(100, 120))
    assert [engine.step() for _ in range(4)] == [{"A": 1}, {"A": 1}, {"B": 16}, {"B": 4}]


def test_one_that_runs_is_passed_over_while_the_step_has_no_room_for_its_block() -> None:
    """A first stops at 8, where it leaves Z's beginning, and then takes 16 of 20 tokens. C needs only one."""
    engine = Engine(FullAttentionSpec(8), state(8), max_num_batched_tokens=20)
    engine.serve("Z", range(24))
    engine.add("A", [*range(8), *range(30, 60)])
    engine.add("B", range(100, 132))
    engine.add("C", range(200, 203), max_tokens=3)
    assert [engine.step() for _ in range(4)] == [
        {"A": 8, "B": 8, "C": 3},
        {"A": 16, "C": 1},
        {"A": 8, "B": 8, "C": 1},
        {"A": 6, "B": 8},
    ]


def test_models_without_states_and_engines_without_a_cache_cut_nothing() -> None:
    for engine in (
        Engine(FullAttentionSpec(16), SlidingWindowSpec(16, sliding_window=20)),
        Engine(FullAttentionSpec(16), state(16), caching=False),
    ):
        assert engine.serve("A", range(40), max_tokens=2) == (0, [40, 1])


# Traces without tokens run through the manager alone, and by the same rule.


@pytest.mark.parametrize(("num_tokens", "num_hit"), [(31, 16), (32, 16), (33, 32), (48, 32)])
def test_a_trace_finds_what_the_scheduler_finds(num_tokens: int, num_hit: int) -> None:
    groups = tuple(KVCacheGroupSpec((f"{i}",), spec) for i, spec in enumerate((FullAttentionSpec(16), state(16))))
    request = KVCacheManager(KVCacheConfig(9, groups)).new_request("A", range(num_tokens))
    prompt = Prompt(num_tokens, request.block_hashes)
    prompts = [prompt, prompt]
    assert list(sequential(Setup(groups).make_manager(prompts), prompts)) == [0, num_hit]
