"""The benchmark beside transformers: the same weights and prompts, and the same answers."""

import pytest

from mini_kv.dev.generate import peers
from mini_kv.dev.generate.setup import make_setup


@pytest.mark.slow
def test_transformers_gives_the_same_answers_in_all_its_ways():
    """Continuous batching asks psutil for the free memory: without that package it is missing, and the rows say so."""
    ways = ["one batch"]
    if peers.has_package("psutil"):
        ways.insert(0, peers.CONTINUOUS)
    for row in peers.run(make_setup("tiny", "cpu", quick=True, repeats=1, seed=0)):
        assert row["failed"] == {}
        assert row["same answers"] == dict.fromkeys(ways, 2)
        assert row["widest gap"] == dict.fromkeys(ways)
        assert list(row["missing"]) == [way for way in [peers.CONTINUOUS] if way not in ways]
