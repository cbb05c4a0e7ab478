"""Plays a scenario in the terminal: the calls, the reasons, and the state after each, one key press per step."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from mini_kv.story.frame import frames
from mini_kv.story.scenario import PlayedStep, Scenario, ScenarioPlayer
from mini_kv.story.step_questions import Prediction
from mini_kv.story.story_text import story_line
from mini_kv.story.text import LEGEND, draw_state
from mini_kv.story.traced_manager import Span

WIDTH = 78
_ESCAPE = re.compile("\x1b\\[[0-9]*m")
STOP = ("q", "Q", "", "\x04", "\x1b")
"""Keys that end a story. The last three are the end of input, Ctrl-D and Esc."""
_BACK = ("\x1b[D", "\x1bOD", "\xe0K", "b")
"""Left, as terminals and Windows send it, and a letter for keyboards without arrows."""


@dataclass(frozen=True, slots=True)
class Page:
    """The text for one key press, and the question before it."""

    text: str
    question: Prediction | None = None
    right: int | None = None
    """Index of the right choice."""


def play_in_terminal(scenario: Scenario, out: TextIO, keys: TextIO | None = None) -> None:
    """Write the scenario to `out`. With `keys` (a terminal) write one step per key: Left goes back, `q` stops.

    With keys each step replaces the one before it, unless the terminal has too few lines or no escape codes.
    """
    colour, width, steps, room = _may_colour(out), _width_of(out), len(scenario.steps), _blocks_of(out)
    pages = [
        Page(
            draw_step(played, f"{number}/{steps}", colour=colour, width=width, max_blocks=room),
            played.step.predict,
            played.right_choice,
        )
        for number, played in enumerate(ScenarioPlayer(scenario).play(), start=1)
    ]
    out.write(f"{scenario.title}\n{'=' * len(scenario.title)}\n")
    out.write(f"{scenario.num_blocks - 1} blocks of {scenario.block_size} tokens.   {LEGEND}\n")
    if _turn_pages(pages, out, keys, width):
        out.write(f"\n{_wrap(scenario.ending, width)}\n")


def play_spans(spans: Sequence[Span], num_blocks: int, out: TextIO, keys: TextIO | None = None) -> None:
    """Write the effect of each call and the state after it. `keys`: as in `play_in_terminal`. Needs snapshots."""
    out.write(f"{LEGEND}\n")
    play_texts(draw_spans(spans, num_blocks, out), out, keys)


def draw_spans(spans: Sequence[Span], num_blocks: int, out: TextIO) -> list[str]:
    """Return the effect of each call and the state after it, one text per call, as wide as `out`. Needs snapshots."""
    colour, width, room = _may_colour(out), _width_of(out), _blocks_of(out)
    texts = []
    for span, frame in zip(spans, frames(spans, num_blocks), strict=True):
        changed = {edge.block_id for edge in span.edges}
        texts.append(
            f"{story_line(span)}\n\n{_indented(draw_state(frame, changed, colour=colour, max_blocks=room), width)}"
        )
    return texts


def play_texts(texts: Sequence[str], out: TextIO, keys: TextIO | None = None) -> None:
    """Write the texts, numbered. `keys`: as in `play_in_terminal`."""
    pages = [Page(f"[{number}/{len(texts)}] {text}") for number, text in enumerate(texts, start=1)]
    _turn_pages(pages, out, keys, _width_of(out))


def _turn_pages(pages: Sequence[Page], out: TextIO, keys: TextIO | None, width: int) -> bool:
    """Write all pages, or with `keys` one per key press. Return whether the last one was reached."""
    number, shown = 0, ""  # pages written; what stands on the screen of them
    while number < len(pages):
        page = pages[number]
        key = ""
        question = ""
        if page.question is not None:
            question = f"\n{_draw_question(page.question, width, numbered=keys is not None)}\n"
        out.write(question)
        if keys is not None and (number > 0 or page.question is not None):
            key = _wait(out, keys, page.question)
            if key in STOP:
                return False
            out.write(_wipe(out, shown + question))
        if key in _BACK and number > 0:
            number = max(number - 1, 1)
            shown = f"\n{pages[number - 1].text}\n"
        else:
            shown = f"{_reply(page, key, width)}\n{page.text}\n"
            number += 1
        out.write(shown)
    return True


def _wipe(out: TextIO, text: str) -> str:
    """Return the codes that erase this text and the line below it, or an empty string if the terminal cannot."""
    lines = text.count("\n") + 1
    if not out.isatty() or os.environ.get("TERM") == "dumb" or lines >= shutil.get_terminal_size().lines:
        return ""
    return f"\033[{lines}A\033[J"


def _may_colour(out: TextIO) -> bool:
    """Return whether escape codes may be written: on a terminal, unless NO_COLOR is set or the terminal is dumb."""
    return out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _width_of(out: TextIO) -> int:
    """Return the width of a line: 78 columns, or less on a narrow terminal."""
    return max(20, min(WIDTH, shutil.get_terminal_size().columns - 2)) if out.isatty() else WIDTH


def _blocks_of(out: TextIO) -> int:
    """Return the most blocks drawn per row: ten, or more on a wider terminal."""
    columns = shutil.get_terminal_size().columns if out.isatty() else WIDTH
    return max(10, (columns - 16) // 8)


def draw_step(
    played: PlayedStep, number: str, *, colour: bool = False, width: int = WIDTH, max_blocks: int = 10
) -> str:
    """Return one step as text: the caption, the calls, the drawing."""
    changed = {edge.block_id for span in played.spans for edge in span.edges}
    calls = _indented(played.lines, width)
    drawing = _indented(draw_state(played.frame, changed, colour=colour, max_blocks=max_blocks), width)
    heading = f"[{number}] {played.step.call} {played.step.request}"
    return f"{heading}\n{_wrap(played.step.say, width)}\n\n{calls}\n\n{drawing}"


def _draw_question(predict: Prediction, width: int = WIDTH, *, numbered: bool = False) -> str:
    """Return a question and its choices, with the keys to press if there are any."""
    marks = range(1, len(predict.choices) + 1) if numbered else ["-"] * len(predict.choices)
    choices = "\n".join(f"    {mark} {choice.text}" for mark, choice in zip(marks, predict.choices, strict=True))
    return f"{_wrap(f'Before you look: {predict.ask}', width)}\n{choices}"


def _reply(page: Page, key: str, width: int) -> str:
    """Return the feedback for an answer, or an empty string if the key is not a choice."""
    if page.question is None or page.right is None:
        return ""
    keyed = {str(number): choice for number, choice in enumerate(page.question.choices, start=1)}
    if key not in keyed:
        return ""
    right = page.question.choices[page.right]
    if keyed[key] is right:
        return f"\nYes: {right.text}.\n"
    return "\n" + _wrap(f'No: {right.text}. For "{keyed[key].text}" to be right, {keyed[key].if_true}', width) + "\n"


def _wrap(text: str, width: int) -> str:
    return textwrap.fill(" ".join(text.split()), width)


def _indented(lines: Sequence[str], width: int) -> str:
    """Return the indented lines. On a narrow terminal a line is broken between blocks, not inside one."""
    if width < WIDTH:
        lines = [part for line in lines for part in _broken(line, width - 4)]
    return "\n".join(f"    {line}" for line in lines)


def _broken(line: str, width: int) -> list[str]:
    """Return the line in parts no wider than `width`, escape codes not counted."""
    parts = [""]
    for cell in re.findall(r" *[^ ]+(?: \])?", line):
        if parts[-1] and len(_ESCAPE.sub("", parts[-1] + cell)) > width:
            parts.append("  " + cell.strip())
        else:
            parts[-1] += cell
    return parts


def _wait(out: TextIO, keys: TextIO, question: Prediction | None) -> str:
    """Wait for a key and return it."""
    answers = f"1-{len(question.choices)}: answer, any key: next" if question is not None else "any key: next step"
    prompt = f"  -- {answers}, left: back, q: stop --"
    out.write(f"\n{prompt}")
    out.flush()
    key = _read_key(keys)
    out.write("\r" + " " * len(prompt) + "\r")
    return key


def _read_key(keys: TextIO) -> str:
    """Return the next key pressed, without waiting for Enter; "" at the end of input."""
    if sys.platform == "win32":
        import msvcrt

        key = msvcrt.getwch()
        return "\xe0" + msvcrt.getwch() if key in "\0\xe0" else key  # an arrow key is two characters
    import termios
    import tty

    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        # All bytes at once: an arrow key sends three, and is one key press all the same.
        return os.read(keys.fileno(), 64).decode(errors="replace")
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
