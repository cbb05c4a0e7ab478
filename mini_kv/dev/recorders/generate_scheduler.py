"""The scheduler's scenarios: those that are written by hand, and long random ones, the same at each run.

In the random ones prompts share a few beginnings and pools are small, but every request fits into its pool alone. What
mini_kv does otherwise on purpose is kept out, since from there on all would differ: with drafts a request ends at a
stop token or at the model's length, and no pool is so small that one is sent back; with priorities a small pool has no
keys. Where a pool with windows or states is small, the seed is one with which no window slides in the midst of a
refusal (`refusal-slides`) and no newcomer fits but for its second state (`state-gate`). With states it is one with
which no newcomer goes on from a state that the same step computes once more (`promised-states`).
"""

import random
from typing import Any

from mini_kv.course.verify.scenario_language import Scenario, format_numbers
from mini_kv.course.verify.scheduler import DEFAULTS, LANGUAGE, SCENARIO_FILES

TIGHT = {"num_blocks": 10, "max_model_len": 36}
_SMALL_STEPS = {"max_num_batched_tokens": 12}
_CHUNKING_OFF = {"enable_chunked_prefill": False, "max_model_len": 28, "max_num_batched_tokens": 28}
HYBRID = {"groups": "full:4 window:4:6", "num_blocks": 18, "max_model_len": 32}
DRAFTS = {"num_speculative_tokens": 3, "num_drafts": 3, "num_blocks": 50, "max_num_seqs": 4, "max_model_len": 40}
STATES = {"groups": "full:4 state:4", "num_blocks": 40, "max_model_len": 40}
_STATES_TIGHT = STATES | {"num_blocks": 16, "max_model_len": 32}
_LONG_BLOCKS = {"groups": "full:8 state:8", "num_blocks": 40, "max_model_len": 60}
PRIORITY = {"policy": "priority", "max_model_len": 40}

SCENARIOS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("random, tight", 1, TIGHT),
    ("random, tight, small steps", 2, TIGHT | _SMALL_STEPS),
    ("random, one text, tight", 3, TIGHT),
    ("random, one text, small steps", 4, TIGHT | _SMALL_STEPS),
    ("random, chunking off", 5, _CHUNKING_OFF),
    ("random, chunking off, tight", 6, _CHUNKING_OFF | {"num_blocks": 8}),
    ("random, threshold", 7, TIGHT | {"long_prefill_token_threshold": 5}),
    ("random, threshold, small steps", 8, TIGHT | _SMALL_STEPS | {"long_prefill_token_threshold": 4}),
    ("random, threshold, chunking off", 9, _CHUNKING_OFF | {"long_prefill_token_threshold": 6}),
    ("random, watermark", 10, TIGHT | {"watermark": 0.2}),
    ("random, watermark, small steps", 11, TIGHT | _SMALL_STEPS | {"watermark": 0.3}),
    ("random, first chunk is enough", 12, TIGHT | _SMALL_STEPS | {"scheduler_reserve_full_isl": False}),
    ("random, two seats", 13, TIGHT | {"max_num_seqs": 2}),
    ("random, caching off", 14, TIGHT | {"enable_caching": False}),
    ("random, salts", 15, TIGHT | {"num_blocks": 16}),
    ("random, one token per block", 16, {"block_size": 1, "num_blocks": 24, "max_model_len": 22}),
    ("random, blocks of 16", 17, {"block_size": 16, "num_blocks": 9}),
    ("random, roomy", 18, {"num_blocks": 40}),
    ("random, priorities", 19, PRIORITY | _SMALL_STEPS | {"num_blocks": 50, "max_num_seqs": 4}),
    ("random, priorities, two seats", 20, PRIORITY | {"num_blocks": 24, "max_num_seqs": 2}),
    ("random, priorities, tight, no keys", 21, PRIORITY | TIGHT | {"enable_caching": False}),
    ("random, priorities, small steps, no keys", 22, PRIORITY | TIGHT | _SMALL_STEPS | {"enable_caching": False}),
    ("random, drafts", 23, DRAFTS),
    ("random, drafts, small steps", 24, DRAFTS | _SMALL_STEPS),
    ("random, drafts, threshold", 25, DRAFTS | {"long_prefill_token_threshold": 4}),
    ("random, drafts, hybrid", 26, DRAFTS | {"groups": "full:4 window:4:6", "num_blocks": 64}),
    ("random, lookahead and drafts", 27, DRAFTS | {"num_lookahead_tokens": 3}),
    ("random, hybrid, roomy", 28, HYBRID | {"num_blocks": 50, "max_num_seqs": 4}),
    ("random, hybrid, one text", 29, HYBRID),
    ("random, hybrid, small steps", 30, HYBRID | _SMALL_STEPS),
    ("random, hybrid, unequal blocks", 31, {"groups": "full:4 window:2:5", "num_blocks": 30, "max_model_len": 36}),
    ("random, hybrid, two windows", 32, {"groups": "full:4 window:4:5 window:4:9", "num_blocks": 40}),
    ("random, a window alone", 33, {"groups": "window:4:9", "num_blocks": 12, "max_model_len": 32} | _SMALL_STEPS),
    ("random, hybrid, keys at the end", 34, HYBRID | {"retention_interval": 0}),
    ("random, hybrid, keys at the end, one text", 37, HYBRID | _SMALL_STEPS | {"retention_interval": 0}),
    ("random, states", 38, STATES),
    ("random, states, one text", 39, STATES),
    ("random, states, small steps", 40, STATES | _SMALL_STEPS),
    ("random, states, threshold", 41, STATES | {"long_prefill_token_threshold": 6}),
    ("random, states, threshold below the block", 42, STATES | {"long_prefill_token_threshold": 3}),
    ("random, states, tight", 57, _STATES_TIGHT),
    ("random, states, tight, small steps", 61, _STATES_TIGHT | _SMALL_STEPS),
    ("random, states, keys at the end", 45, STATES | {"retention_interval": 0}),
    ("random, states, keys at the end, one text", 46, STATES | _SMALL_STEPS | {"retention_interval": 0}),
    ("random, states, every eighth token", 59, STATES | {"retention_interval": 8}),
    ("random, states and a window", 48, STATES | {"groups": "full:4 window:4:6 state:4", "num_blocks": 64}),
    ("random, states, chunking off", 62, STATES | _CHUNKING_OFF),
    ("random, states, priorities", 63, STATES | PRIORITY | _SMALL_STEPS | {"num_blocks": 60, "max_num_seqs": 4}),
    ("random, a state alone", 49, STATES | _SMALL_STEPS | {"groups": "state:4", "num_blocks": 20}),
    ("random, states, blocks longer than a step", 50, _LONG_BLOCKS | {"max_num_batched_tokens": 6, "max_num_seqs": 4}),
    ("random, states, blocks of 8, small steps", 51, _LONG_BLOCKS | _SMALL_STEPS),
)
_NUM_LINES = 60


class Generator:
    """Makes one scenario, line by line."""

    def __init__(self, name: str, seed: int, settings: dict[str, Any]) -> None:
        self.name, self.settings = name, DEFAULTS | settings
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.num_added = 0

    def generate(self) -> list[str]:
        """Return the calls: a few requests at a time, steps, now and then an abort or a reset."""
        actions = [(6, self.add), (12, self.step), (2, self.abort), (4, self.busy_step), (1, self.reset)]
        weights = [weight for weight, _ in actions]
        while len(self.lines) < _NUM_LINES:
            self.random.choices(actions, weights)[0][1]()
        return self.lines

    def add(self) -> None:
        """Add a request whose prompt begins like one of few texts and ends on its own, or does not."""
        block_size, max_model_len = self.settings["block_size"], self.settings["max_model_len"]
        text = 0 if "one text" in self.name else 100 * self.random.randrange(3)
        shared = self.random.randrange(1, min(5 * block_size + 2, max_model_len // 2))
        tokens = list(range(text, text + shared))
        if self.random.random() < 0.5:
            own = 1000 + 100 * self.num_added
            tokens += range(own, own + self.random.randrange(1, min(2 * block_size, max_model_len // 3) + 1))
        options = [f"max={self.random.randrange(1, 17)}"]
        if self.settings["num_drafts"]:
            tokens += (
                [800] if len(tokens) % block_size == 1 else []
            )  # else a hit may leave one token: it would be padded
            options = [f"max={max_model_len}", f"stop={900 + len(tokens) + self.random.randrange(14)}"]
        if self.settings["policy"] == "priority":
            options.append(f"prio={self.random.randrange(3)}")
        if "salts" in self.name and self.random.random() < 0.7:
            options.append(f"salt={self.random.choice('xy')}")
        self.lines.append(f"add R{self.num_added} {format_numbers(tokens)} {' '.join(options)}")
        self.num_added += 1

    def step(self) -> None:
        """Add a line that runs one or two steps."""
        self.lines.append(f"step {self.random.choice((1, 1, 2))}")

    def abort(self) -> None:
        """Add a line that aborts one of the last few requests, running or not."""
        if self.num_added:
            self.lines.append(f"abort R{self.random.randrange(max(0, self.num_added - 4), self.num_added)}")

    def busy_step(self) -> None:
        """Add the lines of a step between whose two halves requests come or go."""
        self.lines.append("schedule")
        for _ in range(self.random.choice((1, 1, 2))):
            self.random.choice((self.abort, self.add))()
        self.lines.append("update")

    def reset(self) -> None:
        """Add a line that asks for a reset, usually in vain."""
        self.lines.append("reset")


def make(name: str, seed: int, settings: dict[str, Any]) -> Scenario:
    """Return a scenario."""
    calls = "\n".join(Generator(name, seed, settings).generate())
    head = {"name": name, "group": "random", "purpose": f"Seed {seed}."}
    return LANGUAGE.parse_scenario({**head, **settings, "calls": calls})


def generated() -> list[Scenario]:
    """Return the random scenarios."""
    return [make(*scenario) for scenario in SCENARIOS]


def scenarios() -> list[Scenario]:
    """Return all scenarios of the scheduler, in the order in which they are recorded."""
    return [*LANGUAGE.read(SCENARIO_FILES), *generated()]
