"""The cache in letters: what chapter 19 shows is what happened."""

from mini_kv.lessons.second_home import SecondHome


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
