"""Plays a scenario in the terminal: what happens, why, and the state after it, one key press a step."""

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from mini_kv.trace.frame import frames
from mini_kv.trace.predict import Prediction
from mini_kv.trace.scenario import PlayedStep, Scenario, ScenarioPlayer, Step
from mini_kv.trace.story import story_line
from mini_kv.trace.traced_manager import Span
from mini_kv.viz.text import LEGEND, draw_state

WIDTH = 78


def play_in_terminal(scenario: Scenario, out: TextIO, keys: TextIO | None = None) -> None:
    """Write the scenario to `out`; with `keys` (a terminal), wait for a key after each step, `q` to stop."""
    colour = may_colour(out)
    steps = len(scenario.steps)
    out.write(f"{scenario.title}\n{'=' * len(scenario.title)}\n")
    out.write(f"{scenario.num_blocks - 1} blocks of {scenario.block_size} tokens.   {LEGEND}\n")
    if ask_before(scenario.steps[:1], out) and keys is not None and not _wait(out, keys):
        return
    for number, played in enumerate(ScenarioPlayer(scenario).play(), start=1):
        out.write(f"\n{draw_step(played, f'{number}/{steps}', colour=colour)}\n")
        ask_before(scenario.steps[number : number + 1], out)
        if keys is not None and number < steps and not _wait(out, keys):
            return
    out.write(f"\n{_wrap(scenario.ending)}\n")


def play_spans(spans: Sequence[Span], num_blocks: int, out: TextIO, keys: TextIO | None = None) -> None:
    """Write what each call did and the state after it; `keys` as in `play_in_terminal`. Needs snapshots."""
    colour = may_colour(out)
    out.write(f"{LEGEND}\n")
    for number, (span, frame) in enumerate(zip(spans, frames(spans, num_blocks), strict=True), start=1):
        changed = {edge.block_id for edge in span.edges}
        drawing = "\n".join(f"    {line}" for line in draw_state(frame, changed, colour=colour))
        out.write(f"\n[{number}/{len(spans)}] {story_line(span)}\n\n{drawing}\n")
        if keys is not None and number < len(spans) and not _wait(out, keys):
            return


def may_colour(out: TextIO) -> bool:
    """Return whether escape codes are welcome: on a terminal, unless NO_COLOR or a dumb terminal says otherwise."""
    return out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def draw_step(played: PlayedStep, number: str, *, colour: bool = False) -> str:
    """Return one step as text: the caption, the calls, the drawing."""
    changed = {edge.block_id for span in played.spans for edge in span.edges}
    calls = "\n".join(f"    {line}" for line in played.lines)
    drawing = "\n".join(f"    {line}" for line in draw_state(played.frame, changed, colour=colour))
    heading = f"[{number}] {played.step.call} {played.step.request}"
    return f"{heading}\n{_wrap(played.step.say)}\n\n{calls}\n\n{drawing}"


def ask_before(steps: Sequence[Step], out: TextIO) -> bool:
    """Write the questions that are asked before these steps; return whether there are any."""
    asked = [step.predict for step in steps if step.predict is not None]
    for predict in asked:
        out.write(f"\n{draw_question(predict)}\n")
    return bool(asked)


def draw_question(predict: Prediction) -> str:
    """Return a question and what there is to choose from."""
    choices = "\n".join(f"    - {choice.text}" for choice in predict.choices)
    return f"{_wrap(f'Before you look: {predict.ask}')}\n{choices}"


def _wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH)


def _wait(out: TextIO, keys: TextIO) -> bool:
    """Wait for a key; return whether to go on."""
    prompt = "  -- any key: next step, q: stop --"
    out.write(f"\n{prompt}")
    out.flush()
    key = read_key(keys)
    out.write("\r" + " " * len(prompt) + "\r")
    return key not in ("q", "Q", "", "\x04", "\x1b")  # the last three: end of input, Ctrl-D, Esc


def read_key(keys: TextIO) -> str:
    """Return the next key pressed, without waiting for Enter; "" at the end of input."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.getwch()
    import termios
    import tty

    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        # All bytes at once: an arrow key sends three, and is one key press all the same.
        return os.read(keys.fileno(), 64).decode(errors="replace")
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
