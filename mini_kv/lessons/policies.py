"""Scenarios of the cache under other policies than its own, for the same figure drawn twice."""

from collections.abc import Iterator

from mini_kv.events.scenario import PlayedStep, Scenario, ScenarioPlayer
from mini_kv.policy.eviction import parts_of
from mini_kv.policy.ranked import SeenTwice


def play_seen_twice(scenario: Scenario) -> Iterator[PlayedStep]:
    """Play a scenario in a cache that evicts blocks used only once before others."""
    return ScenarioPlayer(scenario, parts_of(SeenTwice)).play()
