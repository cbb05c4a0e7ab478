"""The picture of six servers: what it draws are the numbers of the runs, and what it says finds the fault."""

import re

import pytest

from mini_kv.cli import main
from mini_kv.course.lessons import misbehave
from mini_kv.course.lessons.misbehave import BLOCK_SIZE, NUM_REQUESTS, SERVERS, idle_seconds, serve
from mini_kv.course.lessons.six_servers import command, six_servers

NAMES = dict(zip("ABCDEF", SERVERS, strict=True))
HEIGHT, TOP_SHARE, FLOOR = 42, 1.15, {letter: 28 + 42 + 52 * row for row, letter in enumerate("ABCDEF")}


@pytest.fixture(scope="module")
def picture():
    """The picture, as the chapter shows it."""
    return six_servers()


def path_of(picture, letter, name):
    """Return the path of a row's mark."""
    return picture.views[picture.start].marks[f"{'ABCDEF'.index(letter)} {name}"].values["d"]


def last_share(picture, letter, name):
    """Return the share of the pool at which a row's line ends."""
    y = re.findall(r"[ML][\d.]+ ([\d.]+)", path_of(picture, letter, name))[-1]
    return (FLOOR[letter] - float(y)) / HEIGHT * TOP_SHARE


def test_lines_end_where_the_runs_end(picture):
    """D keeps 9.4 per cent of its pool, and F has more keys than blocks: to a tenth of a unit of the drawing."""
    for letter, name in NAMES.items():
        case = serve(name)
        keys = case.seen.num_keys[-1] / (case.fault.num_blocks - 1)
        assert last_share(picture, letter, "usage") == pytest.approx(case.seen.usage[-1], abs=0.002)
        assert last_share(picture, letter, "keys") == pytest.approx(keys, abs=0.002)
    assert last_share(picture, "D", "usage") == pytest.approx(0.094, abs=0.002)
    assert last_share(picture, "F", "keys") > 1.3


def test_bars_are_the_blocks_evicted_at_each_age(picture):
    for letter, name in NAMES.items():
        ages = idle_seconds(serve(name))
        counts = [sum(low <= age < high for age in ages) for low, high in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16))]
        heights = re.findall(r"v-([\d.]+)", path_of(picture, letter, "ages"))
        assert [float(height) / HEIGHT for height in heights] == pytest.approx(
            [count / len(ages) for count in counts], abs=0.002
        )
        said = picture.views[picture.start].marks[f"{'ABCDEF'.index(letter)} evicted"].values["text"]
        assert said == (f"{len(ages):,}" if letter != "A" else f"{len(ages):,} evicted")


def test_dots_are_the_requests(picture):
    """25 dots of B are on the floor, and every dot of C but the first is at one block of its prompt."""
    found = {}
    for letter, name in NAMES.items():
        case = serve(name)
        tops = re.findall(r"M[\d.]+ ([\d.]+)", path_of(picture, letter, "found"))
        found[letter] = [(FLOOR[letter] - 1 - float(top)) / HEIGHT for top in tops]
        hits = zip(case.seen.hits, case.trace, strict=False)
        assert found[letter] == pytest.approx([hit / one.input_length for hit, one in hits], abs=0.002)
    assert {letter: len(dots) for letter, dots in found.items()} == dict.fromkeys("ABCDE", NUM_REQUESTS) | {"F": 62}
    assert sum(share < 0.002 for share in found["B"]) == 25
    prompts = [one.input_length for one in serve("timestamp").trace]
    assert found["C"][1:] == pytest.approx([BLOCK_SIZE / length for length in prompts[1:]], abs=0.002)


def test_no_cause_is_given_away_before_a_server_is_chosen(picture):
    """Neither in the sentence nor by a ring. The charts are the same at every choice."""
    first = picture.views[picture.start]
    assert picture.start == (0,)
    assert not {"band", "ring", "note"} & {*first.marks}
    assert "The cause" not in first.says[0]
    for at, view in picture.views.items():
        assert first.marks.keys() <= view.marks.keys()
        assert ("The cause" in view.says[0], "ring" in view.marks) == (at[0] > 1, at[0] > 1)


def test_each_choice_says_the_number_that_decides_and_the_command(picture):
    notes = {letter: picture.views[row + 2,].marks["note"].values["text"] for row, letter in enumerate("BCDEF")}
    assert notes == {
        "B": "25 find nothing",
        "C": "119 find 16 tokens",
        "D": "9.4% left",
        "E": "747 below 1 s",
        "F": "137% keys",
    }
    for row, (letter, name) in enumerate(NAMES.items()):
        [says] = picture.views[row + 1,].says
        assert says.startswith(letter)
        assert says.endswith(command(name, SERVERS[name])) == (letter != "A")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"), [("salt-per-user", "salt"), ("timestamp", "timestamp"), ("storm", "preemption-storm")]
)
def test_the_command_of_a_fault_in_traffic_or_limits_finds_it(name, cause, tmp_path, capsys):
    make, explain = (part.split()[1:] for part in command(name, SERVERS[name]).split(" | "))
    assert main(make) == 0
    path = tmp_path / "trace.jsonl"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main([str(path) if word == "-" else word for word in explain]) == 0
    assert re.search(rf"^{cause}, [\d.]+ % of the prompt tokens: ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(("name", "rule"), [("leak", "I14"), ("stale-index", "I4")])
def test_the_call_of_a_fault_in_the_engine_finds_it(name, rule):
    called = re.fullmatch(r'(\w+)\("([\w-]+)"\)', command(name, SERVERS[name]))
    assert called is not None
    assert getattr(misbehave, called[1])(called[2]).startswith(f"{rule} broken")
