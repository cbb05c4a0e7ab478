"""What the random test of lab-10 needs: batches of every shape, and the fewest requests that fail."""

import random
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import check_life, seeds

from .helpers import Batch


def compare_random_batches(lab: LabUnderTest, torch: ModuleType) -> None:
    """Run forty random batches. A failure shows the fewest requests of the first failing batch that still fail."""
    for seed in seeds(40):
        rng = random.Random(seed)
        lengths = [rng.choice((0, 1, 2, 3, 4, 5, 7, 8)) for _ in range(rng.choice((1, 1, 2)))]
        shape = {
            "num_kv_heads": rng.choice((1, 2)),
            "group": rng.choice((1, 2, 3)),
            "head_size": rng.choice((8, 12, 16)),
            "block_size": rng.choice((3, 4, 8)),
            "views": rng.random() < 0.5,
            "seed": seed,
        }
        drawn = ", ".join(f"{name}={value}" for name, value in shape.items())
        check_life(lab, partial(play, lab, torch, shape), lengths, f"in a batch with {drawn} and requests of length")


def play(lab: LabUnderTest, torch: ModuleType, shape: dict[str, Any], lengths: Sequence[int]) -> None:
    """Decode requests of these lengths and compare, if there is a request."""
    if lengths:
        batch = Batch(torch, lengths, **shape)
        batch.run(lab)
        batch.check(lab)
