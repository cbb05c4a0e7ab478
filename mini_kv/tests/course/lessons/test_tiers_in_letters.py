"""The cache in letters: what *a second home* shows is what happened."""

from mini_kv.course.lessons.tiers_in_letters import SecondHome, story


def test_two_prompts_that_do_not_fit_together_change_places() -> None:
    """The tail goes down first, and so it is the first to be lost where memory is too small."""
    home = SecondHome(num_blocks=4, memory_blocks=3)
    told = [" ".join(home.send(words).split()) for words in ("abc", "xyz", "abc")]
    assert told == [
        "abc: 13 of 13 computed pool: a ab abc memory:",
        "xyz: 13 of 13 computed, down abc ab a pool: x xy xyz memory: abc ab a",
        "abc: 1 of 13 computed, down xyz xy x, up a ab abc pool: a ab abc memory: xyz xy x",
    ]
    home = SecondHome(num_blocks=4, memory_blocks=2)
    told = [" ".join(home.send(words).split()) for words in ("abc", "xyz", "abc")]
    assert told[1:] == [
        "xyz: 13 of 13 computed, down abc ab a pool: x xy xyz memory: ab a",
        "abc: 5 of 13 computed, down xyz xy x, up a ab pool: a ab abc memory: xy x",
    ]


def test_the_story_is_told_with_a_shelf_below_the_queue() -> None:
    """Who is in the second home after each step, what each prompt computed, and what happened to blocks, in order."""
    data = story(["abc", "xyz", "abc"])
    assert data["tiers"] == [{"id": "memory", "name": "Second home", "capacity": 3}]
    a, ab, abc = data["steps"][0]["names"].split()
    x, xy, xyz = data["steps"][2]["names"].split()
    assert [step["tiers"]["memory"] for step in data["steps"]] == [
        "", "", f"{abc} {ab} {a}", f"{abc} {ab} {a}", f"{xyz} {xy} {x}", f"{xyz} {xy} {x}",
    ]  # fmt: skip
    assert [step.get("scheduled") for step in data["steps"][::2]] == [{"1": 13}, {"2": 13}, {"3": 1}]
    assert data["steps"][4]["names"] == f"{a} {ab} {abc}"
    assert data["steps"][4]["probes"] == [[11, "3", "1..3"]]
    assert data["steps"][4]["events"].endswith("cached 1..3, freed 3..1, revived 1..3, evicted 4, allocated 4")
