"""Stories for the tests of the figure: a real run of any size, and one by hand with all that a story may say."""

import random
from typing import Any

from mini_kv.core.request import Request
from mini_kv.story.figure import spans_data
from mini_kv.tests.traced_run import traced_kv


def crowded_run(num_blocks: int, block_size: int = 16, num_steps: int = 60) -> dict[str, Any]:
    """Return the story of a busy cache: three common beginnings, eight requests at a time."""
    kv = traced_kv(num_blocks, block_size, snapshots=True)
    rng = random.Random(1)
    alive: list[Request] = []
    number = 0
    while sum(span.call != "get_computed_blocks" for span in kv.spans) < num_steps:
        if len(alive) < 8 and rng.random() < 0.65:
            length = rng.randint(1, max(2, num_blocks // 7)) * block_size - 3
            first = rng.choice([0, 1000, 2000])
            own = [5000 + 100 * number + i for i in range(length - length // 2)]
            request = kv.new_request(f"R{number}", [*range(first, first + length // 2), *own])
            number += 1
            hit, num_hits = kv.get_computed_blocks(request)
            if kv.allocate_slots(request, request.num_tokens - num_hits, num_hits, hit) is not None:
                request.num_computed_tokens = request.num_tokens
                alive.append(request)
        elif alive:
            kv.free(alive.pop(rng.randrange(len(alive))))
    return spans_data(kv.spans, num_blocks, block_size, f"{num_blocks} blocks")


def story_of(num_blocks: int, *steps: dict[str, Any], **head: Any) -> dict[str, Any]:
    """Return a story made by hand."""
    pool = {"version": 1, "title": "By hand", "num_blocks": num_blocks, "block_size": 2}
    return {**pool, "steps": [{"lines": [], **step} for step in steps], "drawing": "", **head}


EVERYTHING = story_of(
    8,
    {
        "do": "schedule",
        "say": "A runs. B and C wait.",
        "ref": {"1": "1..4"},
        "name": {"1": "aa11", "2": "bb22", "3": "aa11.1", "4": "bb22.1"},
        "tables": {"A": ["1 2", "3 4"]},
        "free": "5..7",
        "tok": {"A": 4},
        "scheduled": {"A": 4},
        "waiting": ["B", "C"],
    },
    {
        "do": "schedule",
        "say": "The window slides past block 3.",
        "ref": {"1": "5 6", "0": "3"},
        "tables": {"A": ["1 2 5", "0 4 6"]},
        "free": "7 3",
        "tok": {"A": 5},
        "scheduled": {"A": 1},
    },
    {
        "do": "schedule",
        "say": "A is preempted, and what it had computed is demoted.",
        "ref": {"0": "1 2 4 5 6"},
        "tables": {"A": None},
        "free": "6 5 7 3 4 2 1",
        "waiting": [["A", "preempted"], "B", "C"],
        "tiers": {"cpu": "aa11 bb22"},
    },
    {
        "do": "schedule",
        "say": "What B needs comes back from the CPU, into block 6.",
        "ref": {"1": "6"},
        "name": {"6": "aa11"},
        "tables": {"B": ["6"]},
        "free": "5 7 3 4 2 1",
        "waiting": [["A", "preempted"], "C"],
        "tiers": {"cpu": "bb22"},
    },
    title="A window slides, a tier demotes, a scheduler preempts",
    groups=["full attention", "window of 4"],
    tiers=[{"id": "cpu", "name": "CPU", "capacity": 4}],
)
"""Two groups, null blocks, a waiting row, tokens scheduled, a tier."""
