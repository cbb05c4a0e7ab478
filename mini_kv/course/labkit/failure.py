"""A failure as a student reads it: at most 15 lines, and the reason before the traceback.

lab-05  test_2_identical_prompt_shares_all_but_the_tail
B's cached tokens
expected  28
got       0
calls     allocate A: allocated 1..8, cached 1..8
...
state     #=cached  xN=ref_cnt
A     [1x1#] ...
free  next-> 9 10 <-last
why: B's first seven blocks are A's, found by hash
at:  labs/lab-05/starter.py:41  blocks, num_hits = None, 0
"""

import dis
import linecache
import re
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from mini_kv.core.errors import KVCacheError
from mini_kv.core.invariants import LEDGER, InvariantViolationError
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest, same
from mini_kv.course.labkit.implementation import LoadError
from mini_kv.course.labkit.lab import relative
from mini_kv.course.labkit.scoreboard import ACTS_AS_IF, ASK, BREAKS, LabResult, in_full
from mini_kv.course.labkit.time_limit import TookTooLongError
from mini_kv.story.story_text import story
from mini_kv.story.text import LEGEND, draw_state

MAX_LINES = 15
WIDTH = 100
MAX_CHARACTERS = 4000
"""Of an error's text, which a learner's code may make of any length: to wrap it takes the square of that."""


def describe(error: BaseException, result: LabResult, why: str, lab: LabUnderTest | None, source: str) -> str | None:
    """Return the failure as text, or `None` if neither the learner's code nor the cache caused the error.

    Args:
        error: the exception of the test.
        result: the test and the function that it checks.
        why: the test's reason, unless the failure has its own.
        lab: the test's fixture, if it was made. Its caches are drawn.
        source: path of the learner's file.
    """
    at = _where(error.__traceback__, source)
    if not at and error.__context__ is not None:  # a check found what an exception in the learner's code left behind
        at = _where(error.__context__.__traceback__, source)
    what = _what(error, at)
    if what is None:
        return None
    tail = textwrap.wrap(_why(error, why), WIDTH, initial_indent="why: ", subsequent_indent="     ")
    tail += _at(error, at, source)
    tail += _help(result, steps=lab is not None and (len(lab.kvs) > 0 or len(lab.notes) > 1))
    head = [f"{result.lab.lab_id}  {result.test}", *what]
    if isinstance(error, LoadError):
        tail += _course_starter(result)
    if lab is None or isinstance(error, LoadError | SyntaxError):
        return "\n".join([*head, *tail])
    return "\n".join([*head, *_state(lab, MAX_LINES - len(head) - len(tail)), *tail])


BROKE_DOWN = "the test raised an error while it read the result of your code"


def describe_break_down(error: BaseException, result: LabResult) -> str:
    """Return the failure of a test whose own lines raised an error, while they read the learner's result."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = textwrap.wrap(in_words(error), WIDTH, initial_indent="   ", subsequent_indent="   ")
    at = f"at:  {_short(last.filename)}:{last.lineno}  {last.line}"[:WIDTH]
    lines = [f"{result.lab.lab_id}  {result.test}", BROKE_DOWN, *what[:4], at, *_help(result, steps=False)]
    return "\n".join(lines)


def _why(error: BaseException, why: str) -> str:
    """Return the reason to show: the failure's own, else the test's, or none for code that raised an exception."""
    if isinstance(error, LabFailure):
        return error.why or why
    return why if isinstance(error, KVCacheError) else ""


def _at(error: BaseException, at: str, source: str) -> list[str]:
    """Return the part with the learner's line, if one of these lines caused the error."""
    if isinstance(error, LoadError | SyntaxError):
        return []  # the message says where
    if isinstance(error, LabFailure):
        if isinstance(error.got, BaseException):
            at = _where(error.got.__traceback__, source)  # another exception than expected, or one too many
        elif error.line:
            at = _shown_line(source, error.line)
        elif error.got is not None and not error.picture:
            return []  # the code ran through; what it returned is what counts
    return [f"at:  {at}"] if at else []


def _course_starter(result: LabResult) -> list[str]:
    """Return the line with the course's starter. An update may have added or renamed a function."""
    starter = result.lab.pristine_starter
    return [f"the course's starter now: mini_kv/course/labkit/starters/{starter.name}"] if starter.is_file() else []


def _help(result: LabResult, *, steps: bool) -> list[str]:
    """Return the line with the commands for help, if the lab has any. A story needs steps to show."""
    if not any(function.hints for function in result.lab.functions):
        return []
    number = result.lab.lab_id.removeprefix("lab-")
    numbered = re.match(r"test_\d+(?=_)", result.test)  # such a beginning is enough, and fits on the line
    test = numbered.group() if numbered else result.test
    story_line = f"     see it: mini-kv story {number} {test}" if steps else ""
    return [f"hint: mini-kv hint {number} {result.short_function}{story_line}"]


def _what(error: BaseException, at: str) -> list[str] | None:
    """Return the lines that describe the error."""
    if isinstance(error, LabFailure):
        what = textwrap.wrap(error.what[:MAX_CHARACTERS], WIDTH, max_lines=5, placeholder=" ...")
        return [*what, *compared(error.want, error.got), *(f"   {line}" for line in error.picture)]
    if isinstance(error, InvariantViolationError):
        violation = error.violation
        return [
            *textwrap.wrap(str(violation)[:MAX_CHARACTERS], WIDTH)[:3],
            f"   {violation.invariant_id} {LEDGER[violation.invariant_id]}",
        ]
    if isinstance(error, LoadError):
        return [str(error)]
    if isinstance(error, SyntaxError):
        place = f"{_short(error.filename or '?')}:{error.lineno}"
        return [f"{type(error).__name__}: {error.msg}", f"   {place}  {(error.text or '').strip()}"]
    if isinstance(error, TookTooLongError):
        return [str(error)]
    if isinstance(error, SystemExit):
        raised = isinstance(error.__cause__, KeyboardInterrupt)
        return ["the code raised KeyboardInterrupt" if raised else "the code called exit()"]
    if isinstance(error, MemoryError):
        return ["out of memory: the code needs more than a test may use"]
    if isinstance(error, KVCacheError) or at:
        return textwrap.wrap(in_words(error), WIDTH)[:4]
    return None


def in_words(error: BaseException) -> str:
    """Return the type and the text of an error. Of a long text only the beginning."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:MAX_CHARACTERS]


def observed(error: BaseException, source: str, num_compared: int = 0) -> str:
    """Return the failure in words that two runs of the same misconception share: no paths, lines or addresses.

    Floats in a list have two digits each, because the last digits depend on the processor. "" after a timeout, which
    may be the machine's fault. `num_compared`: comparisons that passed before an exception ended the test.
    """
    if isinstance(error, LabFailure):
        got = error.got
        if isinstance(got, list) and got and all(isinstance(number, float) for number in got):
            got = [f"{number:.1e}" for number in got]
        shown = _kind(got, source) if isinstance(got, BaseException) else repr(got)
        shown += "" if error.seen is None else f" of {error.seen!r}"
        return f"{error.what}: {re.sub(' at 0x[0-9a-f]+', '', shown)}"
    if isinstance(error, InvariantViolationError):
        return str(error.violation)
    return "" if isinstance(error, TookTooLongError) else f"{_kind(error, source)} after {num_compared} comparisons"


def num_signs(error: BaseException) -> int:
    """Return how many values of a failed test tell of its cause: the wrong items of a list, or the rows of a table."""
    if not isinstance(error, LabFailure):
        return 1
    if isinstance(error.seen, list):
        return max(len(error.seen), 1)
    if isinstance(error.want, list | tuple) and type(error.want) is type(error.got):
        wrong = sum(not same(want, got) for want, got in zip(error.want, error.got, strict=False))
        return max(wrong + abs(len(error.want) - len(error.got)), 1)
    return 1


def _kind(error: BaseException, source: str) -> str:
    """Return the type of an exception, and whether a `raise` in the learner's file raised it.

    Its text counts only if the engine raised it. A learner's may be any, Python's depends on the line's spelling.
    """
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    code = tb.tb_frame.f_code if tb is not None else None
    if tb and code and code.co_filename == source and code.co_code[tb.tb_lasti] == dis.opmap["RAISE_VARARGS"]:
        return f"{type(error).__name__} on purpose"
    return f"{type(error).__name__}: {error}" if isinstance(error, KVCacheError) else type(error).__name__


def with_belief(message: str, belief: str) -> str:
    """Return the message with the belief before the last lines. Calls and drawing are shortened for it."""
    said = []
    for line in in_full(belief).splitlines():
        said += textwrap.wrap(line, WIDTH, subsequent_indent="     ")
    lines = message.splitlines()
    drawn = next((n for n, line in enumerate(lines) if line.startswith(("   calls ", "   state "))), len(lines))
    rest = lines[drawn + max(len(lines) + len(said) - MAX_LINES, 0) :]
    if rest and rest[0].startswith(" " * 13):
        rest[0] = f"   calls     {rest[0].strip()}"
    lines[drawn:] = rest
    end = next((n for n, line in enumerate(lines) if line.startswith(("at:", "hint:"))), len(lines))
    return "\n".join([*lines[:end], *said, *lines[end:]])


PARTS = ("   expected ", "   calls ", "   state ", ACTS_AS_IF, BREAKS, ASK, "why: ", "at:  ", "hint: ")
"""First words of the parts of a failure. Its first lines, which describe the error, have none."""


def parts_of(message: str) -> dict[str, list[str]]:
    """Return the lines of a failure by the first word of their part, `what` for the first; without the test's name."""
    parts: dict[str, list[str]] = {"what": []}
    part = "what"
    for line in message.splitlines()[1:]:
        if line.startswith(PARTS):
            part = line.split()[0].rstrip(":")
        parts.setdefault(part, []).append(line)
    return parts


def compared(want: object, got: object) -> list[str]:
    """Return both values one below the other, with marks under the differing items of a list."""
    expected = want if isinstance(want, str) else repr(want)  # a text describes what is expected
    lines = [f"   expected  {expected}", f"   got       {_told(got)}"]
    if type(want) is type(got) is list:
        skipped = 0
        if max(map(len, lines)) > WIDTH:  # the first difference must be seen, so what is equal before it gives way
            equal = [same(*pair) for pair in zip(want, got, strict=False)]
            skipped = max([*equal, False].index(False) - 2, 0)
            want, got = want[skipped:], got[skipped:]
            lines = [f"   expected  {want!r}", f"   got       {got!r}"]
        if _marks(want, got):
            lines.append("             " + _marks(want, got))
        if skipped:
            lines.append(f"             the first {skipped} of both are equal and omitted")
    lines = [" ".join(line.splitlines()) for line in lines]  # a value may print itself on several lines
    return [(line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ...").rstrip() for line in lines]


def _told(value: object) -> str:
    """Return `repr(value)`. For an iterator return its type name, because its repr is only an address."""
    if isinstance(value, Iterator):
        return f"an iterator ({type(value).__name__}), which can be read only once"
    return repr(value)


def _marks(want: Sequence[object], got: Sequence[object]) -> str:
    """Return carets under the items of `repr(got)` that are not in their place."""
    marks = " "
    for index, item in enumerate(got):
        wrong = index >= len(want) or not same(want[index], item)
        marks += ("^" if wrong else " ") * len(repr(item)) + "  "
    return marks.rstrip()


def _state(lab: LabUnderTest, room: int) -> list[str]:
    """Return the last calls and the drawing of the cache, in at most `room` lines. The calls are shortened first."""
    if lab.drawing is None or room < 3 or (lab.kvs and not lab.kvs[-1].spans):
        return []  # nothing to draw, or nothing has happened yet
    try:
        drawing = [f"     {line}" for line in draw_state(lab.drawing())]
    except (KVCacheError, AttributeError) as error:  # so broken that it cannot be drawn
        return [f"   state     cannot be drawn: {error}"[:WIDTH]]
    if len(drawing) > room - 1:
        drawing = [*drawing[: room - 3], "     ...", drawing[-1]] if room > 3 else drawing[-1:]
    drawing = [f"   state     {LEGEND}", *drawing]
    num_calls = min(3, room - len(drawing))
    calls = story(lab.kvs[-1].spans[-num_calls:]) if lab.kvs and num_calls > 0 else []
    lines = [f"   {'calls' if index == 0 else '':<9} {call}"[:WIDTH] for index, call in enumerate(calls)]
    return [*lines, *drawing]


def running_line(frame: FrameType | None, source: str) -> str:
    """Return the learner's running line under this frame, as file, line and text, or ""."""
    return _last_of(traceback.extract_stack(frame), source)


def _where(tb: TracebackType | None, source: str) -> str:
    """Return the learner's last running line, as file, line and text, or ""."""
    return _last_of(traceback.extract_tb(tb), source)


def _last_of(stack: traceback.StackSummary, source: str) -> str:
    for frame in reversed(stack):
        if frame.filename == source:
            return _shown_line(source, frame.lineno or 0)
    return ""


def _shown_line(source: str, number: int) -> str:
    return f"{_short(source)}:{number}  {linecache.getline(source, number).strip()}"[:WIDTH]


def _short(path: str) -> str:
    """Return the path relative to the working directory if that is shorter."""
    short = relative(path)
    return short if len(short) < len(path) else str(Path(path))
