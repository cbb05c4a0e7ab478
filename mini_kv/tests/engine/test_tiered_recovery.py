"""An exception anywhere in an engine over tiers: nothing is pinned, nothing is waited for in vain, words stay.

MINI_KV_FAIL_EVERY=1 python -m pytest mini_kv/tests/engine/test_tiered_recovery.py -m slow -s     at each; an hour
"""

import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mini_kv.core.invariants import find_violations
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine
from mini_kv.tests.engine.failing_stories import KINDS, MODELS, Fuse, OnlyAttention
from mini_kv.tests.tiers.tiers_driver import FakeServer
from mini_kv.tiers.disk import DiskTier
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import RemoteTier
from mini_kv.tiers.tiered_cache import TieredCache

FAIL_EVERY = int(os.environ.get("MINI_KV_FAIL_EVERY", "499"))
"""From one call, or line, that fails to the next."""
GAPS = (None, 1, 5, 25)
"""Calls from an exception to a second one, while the engine is cleaning up."""
CONFIG = EngineConfig(
    block_size=2,
    num_blocks=8,
    debug_poison=True,
    scheduler=SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2, scheduler_reserve_full_isl=False),
)
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15], [1, 2, 3, 4, 9], [1, 2, 3, 4, 5, 6, 7, 8]]
GREEDY = SamplingParams(max_tokens=2, temperature=0)


class LineFuse(Fuse):
    """Raises at chosen lines of the tiers and of the engine over them, not only at calls."""

    FILES = ("tiers", "tiered_engine.py", "kv_transfer.py")

    def _on_event(self, frame: FrameType, event: str, argument: object) -> Any:
        path = Path(frame.f_code.co_filename)
        if path.parent.parent.name == "tests" or not {path.parent.name, path.name} & {*self.FILES}:
            return None
        if event == "line":
            self.num_calls += 1
            if self.num_calls in self.at:
                self.blown.append(f"{path.name}:{frame.f_lineno}")
                raise KINDS[self.num_calls % len(KINDS)](f"at {self.blown[-1]}")
        return self._on_event


class RelitEngine(TieredEngine):
    """Lets a fuse blow again while a step is taken back."""

    fuse = Fuse()

    def _give_up(self) -> None:
        self.fuse.light_again()
        super()._give_up()


class Play:
    """Sends prompts through, twice, over memory for a few blocks, a disk and a server that has some of them."""

    def __init__(self, model: OnlyAttention, folder: Path, server: FakeServer, fuse: Fuse) -> None:
        self.fuse = fuse
        self.tiers = TieredCache(MemoryTier(1_200), DiskTier(folder, 1 << 20), RemoteTier(server))
        num_groups = len(set(model.windows))
        config = replace(CONFIG, num_blocks=1 + 7 * num_groups)
        self.llm = RelitEngine(model, config=config, tiers=self.tiers, seconds_to_wait=0.5)
        self.llm.fuse = fuse
        self.said: dict[str, list[int]] = defaultdict(list)
        self.may_be_cut: set[str] = set()

    def run(self, prompts: list[list[int]], names: str) -> None:
        """Send prompts through: the next one comes when a step was made."""
        for name, prompt in zip(names, prompts, strict=True):
            if not self._attempt(partial(self.llm.add_request, name, prompt, GREEDY)):
                self.llm.add_request(name, prompt, GREEDY)
            self._step()
        while self.llm.has_unfinished_requests:
            self._step()

    def _step(self) -> None:
        before = set(self.llm._samples)
        if not self._attempt(self._take_in):
            self.may_be_cut |= before - set(self.llm._samples)
            self.may_be_cut |= self.llm._in_step or set()  # the clean-up was stopped, too: the next step does it

    def _take_in(self) -> None:
        for delta in self.llm.step():
            self.said[delta.request_id] += delta.new_token_ids

    def _attempt(self, call: Callable[[], object]) -> bool:
        try:
            with self.fuse:
                call()
            return True
        except KINDS:
            return False

    def check(self) -> None:
        """Raise if something is left over, now that no request is."""
        assert list(find_violations(self.llm.kv_cache_manager)) == [] and self.llm.kv_cache_manager.usage == 0.0
        connector, tiers, memory = self.llm.connector, self.tiers, self.tiers.memory
        connector.build_connector_meta(())
        assert (memory._leases, memory._num_leases, memory._lent) == (set(), {}, set()), "pinned"
        assert memory.num_bytes == sum(map(len, memory._entries.values()))
        assert (connector._preparations, connector._loads, connector._in_flight) == ({}, {}, [])
        tiers.poll()
        assert (tiers._fetches, tiers._going_down, tiers._backlog_bytes) == ({}, {}, 0)


def play(model: OnlyAttention, folder: Path, fuse: Fuse) -> Play:
    """Play the story with exceptions, then ask everything again without any."""
    server = FakeServer(random.Random(0))
    other = Play(model, folder / "other", server, Fuse())
    other.run(PROMPTS[3:], "o")
    other.llm.close()
    played = Play(model, folder / "own", server, fuse)
    played.run([*PROMPTS, *PROMPTS], "abcdefgh")
    played.fuse = Fuse()
    played.check()
    late = played.llm.connector.counts["too late"]
    played.run(PROMPTS, "ijkl")
    assert played.llm.connector.counts["too late"] == late, "a request waited for what does not come"
    played.check()
    played.llm.close()
    again = DiskTier(folder / "own", 1 << 20)
    assert again.failures == {}
    again.close()
    return played


@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # interrupted where a `with` begins to close its file
@pytest.mark.parametrize("make_fuse", [Fuse, LineFuse])
@pytest.mark.parametrize(
    ("number", "fail_every"),
    [
        (0, 8 * FAIL_EVERY),
        *(pytest.param(number, FAIL_EVERY, marks=pytest.mark.slow) for number in range(len(MODELS))),
    ],
)
def test_an_exception_at_any_call_or_line_pins_nothing_and_costs_no_other_request_a_word(
    number: int, fail_every: int, make_fuse: type[Fuse], tmp_path: Path
) -> None:
    """Blocks go down and come up from memory, disk and server meanwhile; the last questions find all as it was."""
    model, counted = MODELS[number], make_fuse()
    wanted = play(model, tmp_path / "0", counted)
    assert wanted.tiers.counts["fetched"] > 0 < wanted.tiers.counts["pushed out"]
    assert wanted.llm.connector.counts["promoted"] > 3
    num_blown = 0
    for at in range(1 + number, counted.num_calls + 1, fail_every):
        gap = GAPS[at % len(GAPS)]
        fuse = make_fuse([at] if gap is None else [at, at + gap])
        played = play(model, tmp_path / str(at), fuse)
        num_blown += len(fuse.blown)
        for name, words in wanted.said.items():
            said = played.said[name]
            assert said == (words if name not in played.may_be_cut else words[: len(said)]), (at, gap, fuse.blown)
    print(f"{counted.num_calls} calls, {num_blown} exceptions")
