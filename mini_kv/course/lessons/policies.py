"""Scenarios of the cache under another eviction policy, to draw the same figure twice."""

from collections.abc import Iterator

from mini_kv.policy.eviction import parts_of
from mini_kv.policy.ranked import SeenTwice
from mini_kv.story.scenario import PlayedStep, Scenario, ScenarioPlayer


def play_seen_twice(scenario: Scenario) -> Iterator[PlayedStep]:
    """Play a scenario in a cache that evicts blocks that were used only once before all others."""
    return ScenarioPlayer(scenario, parts_of(SeenTwice)).play()
