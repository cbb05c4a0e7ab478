"""The same scenario under another policy: what the book's second figure shows."""

from mini_kv.course.lessons.policies import play_seen_twice
from mini_kv.story.scenario import ScenarioPlayer, load_scenario


def test_the_favourite_is_lost_under_lru_and_found_under_seen_twice() -> None:
    """Same calls, same pool; the three passers-by take each other's blocks, and not the favourite's."""
    scenario = load_scenario("passers-by")
    lru, twice = list(ScenarioPlayer(scenario).play()), list(play_seen_twice(scenario))
    assert lru[-1].lines == ["lookup F3: hit 0", "allocate F3: allocated 4 3 6, evicted 3 6, cached 4 3"]
    assert [step.lines[-1] for step in twice if step.step.call == "prefill"] == [
        "allocate F1: allocated 1..3, cached 1 2",
        "allocate F2: revived 1 2, allocated 3",
        "allocate S1: allocated 3..5, cached 3 4",
        "allocate S2: allocated 5 6 4, evicted 4, cached 5 6",
        "allocate S3: allocated 4 3 6, evicted 3 6, cached 4 3",
        "allocate F3: revived 1 2, allocated 6",
    ]
    assert [step.step for step in lru] == [step.step for step in twice]
