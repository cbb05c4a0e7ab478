"""The command `mini-kv`: help, version, stories, and how it ends."""

import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mini_kv import __version__
from mini_kv.cli import VERBS, main
from mini_kv.course.labkit.course_settings import PLACEHOLDER
from mini_kv.messages import shown
from mini_kv.story.events_file import EventsHeader, load_events
from mini_kv.story.figure import page, story_data
from mini_kv.story.scenario import ScenarioPlayer, load_scenario, scenario_names
from mini_kv.story.terminal import play_in_terminal, play_spans

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


def run(*argv, **options):
    """Run `python -m mini_kv` and return it when it is done."""
    return subprocess.run([sys.executable, "-m", "mini_kv", *argv], cwd=ROOT, text=True, check=False, **options)


def test_without_arguments_a_screen_begins_with_the_first_command(capsys):
    """The verbs by what one wants to do, on one screen; the rest is in the help."""
    assert main([]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    headings = [line for line in lines if line and not line.startswith("  ")]
    first, *groups, last = headings
    assert (first, last) == ("begin: mini-kv story share-and-evict", "all: mini-kv --help")
    assert groups == ["learn", "your engine", "your server", "your class"]
    assert err == ""
    assert max(map(len, lines)) <= 80


def test_the_help_has_every_verb_once(capsys):
    """Also as the verb `help`, which prints the help of another verb, too."""
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert re.findall(r"^  ([a-z-]+) {2,}[a-z]", told.partition("\nlearn\n")[2], re.MULTILINE) == list(VERBS)
    with pytest.raises(SystemExit):
        main(["help"])
    assert capsys.readouterr().out == told
    with pytest.raises(SystemExit):
        main(["help", "status"])
    assert capsys.readouterr().out.startswith("usage: mini-kv status [-h]")


@pytest.mark.parametrize(
    ("site", "where"),
    [("", "make book, then /play/ at the address"), ("https://kv.example.edu/", "https://kv.example.edu/play/")],
)
def test_play_is_a_page(site, where, tmp_path, monkeypatch, capsys):
    """It has no verb: the error says where the page is, and which verb writes in the terminal."""
    for name in ("labs/lab-05", "book"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "labs/lab-05/lab.toml", tmp_path / "labs/lab-05")
    course = f'address = "https://github.com/{PLACEHOLDER}/mini_kv"\nsite = "{site}"\n'
    (tmp_path / "book/course.toml").write_text(course, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["play"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert where in told and "mini-kv generate 'A block is'" in told


def test_python_m_mini_kv_is_the_command(capsys):
    """The same help from the module, and the same function behind the installed command."""
    main([])
    done = run(capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, capsys.readouterr().out, "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["mini-kv"].partition(":")
    assert getattr(importlib.import_module(module), function) is main


def test_the_version(capsys):
    """One number, the package's."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mini-kv {__version__}\n"


@pytest.mark.slow
def test_a_path_is_printed_whatever_the_encoding_of_the_terminal(tmp_path):
    """A Windows console may have none of these letters: they are escaped."""
    page = tmp_path / "my page ä 文.html"
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mini_kv", "story", "sharing", "--to", str(page)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("cp1252").endswith("my page ä \\u6587.html in a browser\n")
    assert page.is_file()


@pytest.mark.parametrize("name", scenario_names())
def test_a_story(capsys, name):
    """Not at a terminal: all of it at once, plain."""
    assert main(["story", name]) == 0
    told = io.StringIO()
    play_in_terminal(load_scenario(name), told)
    captured = capsys.readouterr()
    assert captured.out == told.getvalue()
    assert "\x1b" not in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("verb", ["status", "hint", "predict", "reset", "doctor"])
def test_a_verb_waits_for_no_other(verb):
    """Neither the engine nor the figure is loaded for it, nor what takes long to load in the standard library."""
    small = tuple(
        f"mini_kv.{name}"
        for name in ("course", "cli", "installer", "interrupts", "messages", "progress_line", "typed_numbers")
    )
    code = (
        f"import sys; from mini_kv.cli import build_parser; build_parser({verb!r});"
        f" print([name for name in sys.modules if name.startswith('mini_kv.') and not name.startswith({small})],"
        " sorted({'asyncio', 'unittest', 'torch'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE)
    assert done.stdout == "[] []\n"


class WaitsForAKeyError(Exception):
    """Raised where a key would be read."""


class Terminal(io.StringIO):
    """A stream that says it is a terminal, at which no key will be pressed."""

    def isatty(self):
        return True

    def fileno(self):
        raise WaitsForAKeyError


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reads keys from the console, whatever standard input is")
def test_a_story_at_a_terminal_waits_for_keys_unless_told_otherwise(monkeypatch):
    """Both ends must be a terminal: with the output or the input in a pipe, all of it is printed."""
    terminal, pipe = Terminal(), io.StringIO()
    ends: list[tuple[io.StringIO, io.StringIO, list[str]]] = [
        (terminal, terminal, []),
        (terminal, terminal, ["--plain"]),
        (pipe, terminal, []),
        (terminal, pipe, []),
        (pipe, pipe, []),
    ]
    waited = []
    for stdin, stdout, argv in ends:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        try:
            assert main(["story", "share-and-evict", *argv]) == 0
            waited.append(False)
        except WaitsForAKeyError:
            waited.append(True)
    assert waited == [True, False, False, False, False]


def test_a_story_as_a_page(capsys, tmp_path):
    """A file that needs nothing else; where it cannot be written, a line and status 2."""
    file = tmp_path / "story.html"
    assert main(["story", "sharing", "--to", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == page(story_data(load_scenario("sharing")))
    assert capsys.readouterr().out == f"open {file} in a browser\n"
    assert main(["story", "sharing", "--to", str(tmp_path / "none" / "story.html")]) == 2
    assert capsys.readouterr().err.startswith("mini-kv story: ")


def test_two_stories_side_by_side_are_a_page(capsys, tmp_path):
    file = tmp_path / "both.html"
    assert main(["story", "sharing", "--beside", "eviction", "--to", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    titles = [json.loads(data)["title"] for data in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    assert titles == [load_scenario(name).title for name in ("sharing", "eviction")]
    assert len(re.findall("<kv-story[^>]* follows>", text)) == 1
    capsys.readouterr()
    assert main(["story", "sharing", "--beside", "eviction"]) == 2
    assert capsys.readouterr().err.endswith("--beside shows two stories in a page: add --to FILE.html\n")


def test_a_story_as_a_moving_picture(capsys, tmp_path):
    """The README's picture is what the command writes; it has a frame per step, and is read as XML."""
    file = tmp_path / "story.svg"
    assert main(["story", "asked-twice", "--to", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    text = file.read_text(encoding="utf-8")
    assert text == (ROOT / "book/docs/assets/asked-twice.svg").read_text(encoding="utf-8")
    frames = [group for group in ElementTree.fromstring(text) if group.get("class") == "step"]
    assert [group.get("style") for group in frames] == [f"animation-delay:{2.5 * step:g}s" for step in range(7)]
    assert main(["story", "sharing", "--to", str(tmp_path / "none" / "story.svg")]) == 2
    assert main(["story", "05", "--to", str(file)]) == 2
    assert capsys.readouterr().err.count("mini-kv story: ") == 2


@pytest.mark.parametrize("name", scenario_names())
def test_a_story_as_a_file_of_events(name, capsys, tmp_path):
    """What was written plays as the scenario itself does."""
    file = tmp_path / "story.jsonl"
    assert main(["story", name, "--to", str(file)]) == 0
    assert capsys.readouterr().out == f"play it:  mini-kv story {file}\n"
    header, spans = load_events(file.read_text(encoding="utf-8"))
    played = ScenarioPlayer(load_scenario(name))
    steps = list(played.play())
    assert len(steps) <= len(spans)
    assert (header, spans) == (EventsHeader.of(played.kv.manager), played.kv.spans)

    assert main(["story", str(file)]) == 0
    told = io.StringIO()
    play_spans(spans, header.num_blocks, told)
    assert capsys.readouterr().out == told.getvalue()
    assert len(told.getvalue().splitlines()) > len(spans)


def test_a_file_of_events_that_cannot_be_played(capsys, tmp_path):
    """One line that names the file and what is wrong with it, status 2."""
    header = '{"version": 1, "num_blocks": 5, "block_size": 2, "enable_caching": true}\n'
    for content, said in [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "is not a file of events: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"no json", "is not a file of events: line 1: "),
        (header.encode() + b'{"call": "free", "request_id": "A"}', "has calls without tables and free_order"),
    ]:
        file = tmp_path / "calls.jsonl"
        if content is not None:
            file.write_bytes(content)
        assert main(["story", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"mini-kv story: {shown(str(file))} {said}")
    for argv in (
        ["calls.jsonl", "--to", "page.html"],
        ["calls.jsonl", "--to", "more.jsonl"],
        ["05", "--to", "e.svg"],
    ):
        assert main(["story", *argv]) == 2
        assert "--to" in capsys.readouterr().err


def test_a_labs_test_as_a_page(tmp_path):
    """What a test did to the cache, and how it ended; a test that has no cache says so."""
    file = tmp_path / "story.html"
    environment = {**os.environ, "LAB_IMPL": "solution"}
    done = run("story", "05", "test_2", "--to", str(file), stdout=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stdout) == (0, f"open {file} in a browser\n")
    text = file.read_text(encoding="utf-8")
    assert "lab-05: test_2_identical_prompt_shares_all_but_the_tail_block" in text
    assert "allocate B: shared 1..7, allocated 9, cached 9" in text


def told(lab: str, test: str, code: Path) -> list[str]:
    """Return the lines of a test's story, run on this code."""
    done = run("story", lab, test, stdout=subprocess.PIPE, env=os.environ | {"LAB_IMPL": str(code)})
    assert done.returncode == 0
    lines: list[str] = done.stdout.splitlines()
    return lines


@pytest.mark.slow
def test_the_story_of_a_test_without_a_cache_is_what_it_compared(tmp_path):
    """A queue that forgets to count what left: each look, expected and got; the one that differs is marked."""
    right = ROOT / "solutions/lab-02/solution.py"
    wrong = tmp_path / "wrong.py"
    wrong.write_text(right.read_text(encoding="utf-8").replace("self.num_free_blocks -= n", "pass"), encoding="utf-8")
    lines = told("02", "test_6", wrong)
    assert lines[: lines.index("lab-02  test_6_several_leave_at_once")] == [
        "",
        "[1/3] blocks taken by popleft_n(3) from [3, 0, 5, 1, 4]",
        "   expected  [3, 0, 5]",
        "   got       [3, 0, 5]",
        "",
        "[2/3] queue after popleft_n(3) from [3, 0, 5, 1, 4]",
        "   expected  [1, 4]",
        "   got       [1, 4]",
        "",
        "[3/3] num_free_blocks, queue after popleft_n(3) from [3, 0, 5, 1, 4]    <- the first that differs",
        "   expected  2",
        "   got       5",
        "",
    ]
    rest = lines[lines.index("lab-02  test_6_several_leave_at_once") + 1 :]
    words = [line.split()[0] for line in rest if not line.startswith(" ")]
    assert words == ["breaks", "hint:"]  # the comparison is not shown again
    assert [line for line in told("02", "test_6", right) if "differs" in line] == []


def test_the_story_of_a_scheduler_tells_its_steps_between_the_calls():
    """Who computes how much, of which budget, and who runs, waits and gave way."""
    lines = told("11", "test_4", ROOT / "solutions/lab-11/solution.py")
    steps = [line.partition("] step: ")[2] for line in lines if "] step: " in line]
    assert steps == [
        "A 11, B 3   (14 of 14 tokens; running: A, B; waiting: none)",
        "A 1, B 8   (9 of 14 tokens; running: A, B; waiting: none)",
        "A 1, B 1   (2 of 14 tokens; running: A, B; waiting: none)",
        "A 1   (1 of 14 tokens; running: A; waiting: B, C; gave way: B)",
    ]
    assert [line for line in lines if "free B" in line] == ["[14/19] free B: freed 6..4"]


@pytest.mark.slow
def test_the_story_of_a_random_test_is_its_shortest_failing_life(tmp_path):
    """Not the thousand comparisons before it; and of many comparisons the last 30."""
    right = (ROOT / "solutions/lab-02/solution.py").read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(right.replace("return taken", "return taken[::-1]"), encoding="utf-8")
    lines = told("02", "random", wrong)
    assert lines[1:4] == [
        "[1/1] what popleft_n(3) gives    <- the first that differs",
        "   expected  [4, 2, 0]",
        "   got       [0, 2, 4]",
    ]
    lines = told("02", "random", ROOT / "solutions/lab-02/solution.py")
    assert lines[1].startswith("[1/31] (") and "earlier comparisons" in lines[1]


@pytest.mark.parametrize("argv", [["hint"], ["story", "share-and-evict", "--fast"]])
def test_a_wrong_command_line(capsys, argv):
    """Usage and one line, status 2."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("usage: mini-kv")
    assert "error:" in lines[-1]


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    """Ctrl-C ends with 130, as the shell expects, and in silence."""

    class Interrupted(io.StringIO):
        def write(self, text):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", Interrupted())
    assert main(["story", "share-and-evict"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a closed pipe as another error")
def test_a_reader_that_has_seen_enough(unbuffered):
    """`mini-kv story ... | head -1`: the pipe is closed, and that is no reason to complain."""
    reader, writer = os.pipe()
    os.close(reader)  # head is gone before the first byte: the case that needs no luck to meet
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    try:
        done = run("story", "share-and-evict", stdout=writer, stderr=subprocess.PIPE, env=environment)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
