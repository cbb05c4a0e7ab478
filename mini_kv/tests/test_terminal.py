"""The terminal player: one key per step, and the terminal afterwards as it was before."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from mini_kv.story.scenario import load_scenario, parse_scenario
from mini_kv.story.terminal import play_in_terminal

ROOT = Path(__file__).resolve().parents[2]
needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals like these")

TEXT = """
title = "Short"
num_blocks = 4
block_size = 2
ending = "That is all."

[[step]]
call = "prefill"
request = "A"
tokens = "1..3"
say = "A comes."

[[step]]
call = "prefill"
request = "B"
tokens = "1..3"
say = "B asks the same, and there is one block left for its tail, which is all it needs, as the first is shared."

[[step]]
call = "free"
request = "A"
say = "A leaves."
"""
SCENARIO = parse_scenario("short", TEXT)

STEP_1 = """\
Short
=====
3 blocks of 2 tokens.   #=cached  xN=ref_cnt

[1/3] prefill A
A comes.

    lookup A: hit 0
    allocate A: allocated 1 2, cached 1

    A     [1x1#] [2x1 ]
    free  next-> 3 <-last
"""
STEP_2 = """\

[2/3] prefill B
B asks the same, and there is one block left for its tail, which is all it
needs, as the first is shared.

    lookup B: hit 2
    allocate B: shared 1, allocated 3

    A     [1x2#] [2x1 ]
    B     [1x2#] [3x1 ]
    free  next-> <-last
"""
STEP_3 = """\

[3/3] free A
A leaves.

    free A: freed 2, unshared 1

    B     [1x1#] [3x1 ]
    free  next-> 2 <-last
"""
ENDING = "\nThat is all.\n"
PROMPT = "\n  -- any key: next step, left: back, q: stop --"
GONE = "\r" + " " * (len(PROMPT) - 1) + "\r"
ASKED = "\n  -- 1-2: answer, any key: next, left: back, q: stop --"
ANSWERED = "\r" + " " * (len(ASKED) - 1) + "\r"


class Keyboard(io.TextIOWrapper):
    """The program's end of a terminal whose other end types `left`."""

    left: list[bytes]
    before: list[Any]

    def __init__(self, fd, **options):
        super().__init__(os.fdopen(fd, "rb"), **options)


class Screen(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def press(monkeypatch):
    """Return a function that opens a keyboard: it types the next of these keys whenever the terminal listens."""
    import pty
    import termios
    import tty

    opened: list[IO[Any]] = []

    def open_keyboard(*keys):
        master, slave = pty.openpty()
        keyboard = Keyboard(slave, encoding="utf-8")
        opened.extend((os.fdopen(master, "wb", buffering=0), keyboard))
        left = keyboard.left = list(keys)
        setcbreak = tty.setcbreak

        def listen(fd, *args):
            setcbreak(fd, *args)
            assert not termios.tcgetattr(fd)[3] & termios.ICANON
            os.write(master, left.pop(0))

        monkeypatch.setattr(tty, "setcbreak", listen)
        keyboard.before = termios.tcgetattr(keyboard)
        return keyboard

    yield open_keyboard
    for file in opened:
        file.close()


def played(keys=None, scenario=SCENARIO):
    """Return what is written, one after the other, without the bold and without what takes the last step away."""
    out = Screen()
    play_in_terminal(scenario, out, keys)
    return re.sub("\x1b\\[([01]m|[0-9]+A|J)", "", out.getvalue())


def test_without_a_keyboard_all_of_it_at_once():
    """Title, legend, each step with caption, calls and drawing, the last word."""
    assert played() == STEP_1 + STEP_2 + STEP_3 + ENDING


QUESTION = """
[step.predict]
ask = "How many?"
measure = "new_blocks"
choice = [{ value = 7, text = "seven", if_true = "so" }, { value = RIGHT }]
"""


def asking_before(number, right):
    """Return the scenario with a question before that step."""
    parts = TEXT.split("[[step]]")
    parts[number] += QUESTION.replace("RIGHT", right)
    return parse_scenario("asking", "[[step]]".join(parts))


def test_a_question_stands_before_its_step():
    """So that a reader can think before looking; there is no other way in plain text."""
    told = played(scenario=asking_before(1, "2"))
    question = "\nBefore you look: How many?\n    - seven\n    - 2\n"
    assert told == STEP_1.replace("\n\n[1/3]", f"\n{question}\n[1/3]") + STEP_2 + STEP_3 + ENDING


NUMBERED = "\nBefore you look: How many?\n    1 seven\n    2 1\n"


@needs_pty
def test_a_question_costs_no_further_key(press):
    """It is read with the drawing before it."""
    keyboard = press(b" ", b" ")
    told = played(keyboard, asking_before(2, "1"))
    assert told == STEP_1 + NUMBERED + ASKED + ANSWERED + STEP_2 + PROMPT + GONE + STEP_3 + ENDING


@needs_pty
@pytest.mark.parametrize(
    ("key", "reply"), [(b"2", "\nYes: 1.\n"), (b"1", '\nNo: 1. For "seven" to be right, so\n'), (b"3", ""), (b"0", "")]
)
def test_a_question_can_be_answered(press, key, reply):
    """By a choice's number. The reply says what would have had to be true; a key that is no choice is any key."""
    told = played(press(key, b" "), asking_before(2, "1"))
    assert told == STEP_1 + NUMBERED + ASKED + ANSWERED + reply + STEP_2 + PROMPT + GONE + STEP_3 + ENDING


@needs_pty
@pytest.mark.parametrize("left", [b"\x1b[D", b"\x1bOD", b"b"], ids=["arrow", "keypad", "letter"])
def test_left_goes_back(press, left):
    """The step before is shown again, and the next key goes on from there; the first has none before it."""
    told = played(press(left, b" ", left, b" ", b" "))
    first, second = STEP_1.partition("\n\n")[2], STEP_2
    waits = [STEP_1, "\n" + first, second, "\n" + first, second]
    assert told == "".join(step + PROMPT + GONE for step in waits) + STEP_3 + ENDING


def screen(written, rows, columns):
    """Return the lines that a terminal of this size shows in the end: all that the player needs of one."""
    lines, row, column = [""], 0, 0
    for text, up, down in re.findall("([^\x1b]+)|\x1b\\[([0-9]+)A|\x1b\\[(J|[01]m)", written):
        if up:
            row, column = max(len(lines) - rows, row - int(up), 0), 0
        elif down == "J":
            del lines[row + 1 :]
            lines[row] = ""
        for character in text:
            if character == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif character == "\r":
                column = 0
            else:
                lines[row] = f"{lines[row]:<{column}}"[:column] + character + lines[row][column + 1 :]
                column += 1
    assert max(map(len, lines)) <= columns
    return [line.rstrip() for line in lines[-rows:]]


@needs_pty
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_step_takes_the_place_of_the_one_before(press, monkeypatch, columns):
    """Forward, back, forward, a question answered: in the end one step stands under the title, and the last words."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")
    out = Screen()
    play_in_terminal(asking_before(2, "1"), out, press(b"2", b"b", b"2", b" "))
    alone = Screen()
    play_in_terminal(SCENARIO, alone)
    title, last = "".join(screen(alone.getvalue(), 99, columns)[:1]), alone.getvalue().rpartition("[3/3]")[2]
    assert screen(out.getvalue(), 40, columns) == [
        title,
        "=====",
        "3 blocks of 2 tokens.   #=cached  xN=ref_cnt",
        "",
        *screen("[3/3]" + last, 99, columns),
    ]


@needs_pty
@pytest.mark.parametrize(("name", "value"), [("LINES", "9"), ("TERM", "dumb")])
def test_a_terminal_that_cannot_take_it_away_keeps_it(press, monkeypatch, name, value):
    """Too low for a step, or unable to move up: the steps follow each other."""
    monkeypatch.setenv(name, value)
    out = Screen()
    play_in_terminal(SCENARIO, out, press(b" ", b" "))
    assert "A" not in re.findall("\x1b\\[[0-9]*([A-Z])", out.getvalue())


def test_a_wide_terminal_shows_more_blocks(monkeypatch):
    """Twelve blocks lose their middle in eighty columns, and keep it in two hundred."""
    text = TEXT.replace("num_blocks = 4", "num_blocks = 14").replace('"1..3"', '"1..24"')
    assert "..4 more.." in played(scenario=parse_scenario("long", text))
    monkeypatch.setenv("COLUMNS", "200")
    wide = played(scenario=parse_scenario("long", text))
    assert "more" not in wide
    assert max(map(len, wide.splitlines())) <= 200


@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize("name", ["share-and-evict", "who-runs-next", "two-memories"])
def test_on_a_narrow_terminal_lines_break_between_words_and_blocks(monkeypatch, columns, name):
    """Every line fits, and without the line breaks the story is the same."""
    wide = played(scenario=load_scenario(name))
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = played(scenario=load_scenario(name))
    head = 3  # title and legend
    assert max(map(len, narrow.splitlines()[head:])) <= columns
    assert narrow.split() == wide.split()


@needs_pty
def test_a_question_before_the_first_step_waits(press):
    """Nothing is on the screen yet that it could be read with."""
    assert played(press(b"q"), asking_before(1, "2")).endswith("    2 2\n" + ASKED + ANSWERED)


@needs_pty
def test_one_key_per_step(press):
    """After each step but the last it waits; the prompt goes away before the next step comes."""
    import termios

    keyboard = press(b" ", b"\n")
    assert played(keyboard) == STEP_1 + PROMPT + GONE + STEP_2 + PROMPT + GONE + STEP_3 + ENDING
    assert keyboard.left == []
    assert termios.tcgetattr(keyboard) == keyboard.before


@needs_pty
@pytest.mark.parametrize("key", [b"q", b"Q", b"\x1b", b"\x04"], ids=["q", "Q", "Esc", "Ctrl-D"])
def test_q_stops(press, key):
    """So do Escape and Ctrl-D; what was to come is not played."""
    import termios

    keyboard = press(b" ", key, b"never typed")
    assert played(keyboard) == STEP_1 + PROMPT + GONE + STEP_2 + PROMPT + GONE
    assert keyboard.left == [b"never typed"]
    assert termios.tcgetattr(keyboard) == keyboard.before


@needs_pty
@pytest.mark.parametrize("key", [b"\x1b[A", b"\x1b[15~", "ü".encode()], ids=["arrow", "F5", "umlaut"])
def test_a_key_that_sends_several_bytes_is_one_key(press, key):
    """An arrow key is one step, and neither three nor an Escape."""
    keyboard = press(key, b" ")
    assert played(keyboard) == STEP_1 + PROMPT + GONE + STEP_2 + PROMPT + GONE + STEP_3 + ENDING
    assert keyboard.left == []


@needs_pty
def test_ctrl_c_leaves_the_terminal_as_it_was(press, monkeypatch):
    """The interrupt comes while it waits for a key: out it goes, echo and line editing are back."""
    import termios

    keyboard = press(b"")

    def interrupted(*_):
        assert not termios.tcgetattr(keyboard)[3] & termios.ECHO
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        played(keyboard)
    monkeypatch.undo()
    assert termios.tcgetattr(keyboard) == keyboard.before


@needs_pty
def test_the_end_of_input_stops(press, monkeypatch):
    """Where no key can ever be pressed, the player waits for none, and does not run on by itself."""
    keyboard = press(b"")
    monkeypatch.setattr(os, "read", lambda *_: b"")
    assert played(keyboard) == STEP_1 + PROMPT + GONE


@needs_pty
@pytest.mark.parametrize("ending", ["q", "Ctrl-C", "Ctrl-D"])
def test_the_command_on_a_real_terminal(ending):
    """`mini-kv story` on a terminal of its own: steps at a key, ends with 0 or 130, and leaves the settings alone."""
    import pty
    import termios

    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)

    environment = {**os.environ, "COLUMNS": "80"}
    # The first terminal that a new session opens is its own: only then does Ctrl-C reach it as an interrupt.
    # And tests that run in the background are told, and so is the player, to ignore interrupts.
    code = (
        "import os, signal; os.open(os.ttyname(0), os.O_RDWR);"
        " signal.signal(signal.SIGINT, signal.default_int_handler);"
        " from mini_kv.cli import main; raise SystemExit(main())"
    )
    command = [sys.executable, "-c", code, "story", "share-and-evict"]
    player = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=environment, cwd=ROOT, start_new_session=True
    )
    try:
        first = _read_until(master, b"q: stop --")
        assert b"[1/8]" in first and b"[2/8]" not in first
        _when_listening(slave, master, b" ")
        second = _read_until(master, b"q: stop --")
        assert b"[2/8]" in second and b"[3/8]" not in second
        _when_listening(slave, master, {"q": b"q", "Ctrl-C": b"\x03", "Ctrl-D": b"\x04"}[ending])
        assert player.wait(timeout=10) == (130 if ending == "Ctrl-C" else 0)
        assert termios.tcgetattr(slave) == before
        assert player.stderr is not None and player.stderr.read() == b""
    finally:
        player.kill()
        player.communicate()
        os.close(master)
        os.close(slave)


def _read_until(fd, end):
    read = b""
    while end not in read:
        read += os.read(fd, 10_000)
    return read


def _when_listening(slave, master, key):
    """Type the key once the terminal is switched to single keys: what is typed before that is thrown away."""
    import termios

    while termios.tcgetattr(slave)[3] & termios.ICANON:
        pass
    os.write(master, key)


def test_bold_on_a_terminal():
    """The blocks that a step has touched stand out."""
    out = Screen()
    play_in_terminal(SCENARIO, out)
    assert "    B     \x1b[1m[1x2#]\x1b[0m \x1b[1m[3x1 ]\x1b[0m\n" in out.getvalue()


@pytest.mark.parametrize(
    ("out", "name", "value"),
    [(Screen, "NO_COLOR", ""), (Screen, "NO_COLOR", "1"), (Screen, "TERM", "dumb"), (io.StringIO, "TERM", "xterm")],
)
def test_no_colour_where_it_is_not_wanted(monkeypatch, out, name, value):
    """NO_COLOR, even empty, a dumb terminal, and a file or a pipe: not one escape code."""
    monkeypatch.setenv(name, value)
    written = out()
    play_in_terminal(SCENARIO, written)
    assert written.getvalue() == STEP_1 + STEP_2 + STEP_3 + ENDING


def test_no_line_of_a_story_is_wider_than_a_terminal():
    """Eighty columns are enough, and no line ends in spaces."""
    out = io.StringIO()
    play_in_terminal(load_scenario("share-and-evict"), out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
