"""The content of fences: code that ran, a command's output, a symbol's source. Standard library only.

The book's build and `mini_kv/tests/test_book.py` call the same functions.
"""

import ast
import io
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from mini_kv.course.lessons.play import Levers
from mini_kv.course.lessons.predict import Question, parsed
from mini_kv.course.lessons.trusted import plain
from mini_kv.story.figure import played_data, story_data
from mini_kv.story.scenario import load_scenario
from mini_kv_book.assets.play_page import BOXES, problem
from mini_kv_book.places import DOCS, ROOT

_ERRATA = DOCS / "reference" / "errata.md"
_PRINTS = "# prints:"
PREDICT = "# predict first"
_CPU_S = 60
"""Seconds that a command may compute, on a system that can limit it. On a busy machine they take much longer."""
_WALL_S = 600
"""Seconds on the clock after which a command hangs."""


class FenceError(Exception):
    """The content of a fence cannot be shown. `offset` is the guilty line, counted from the body's first."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class Source(NamedTuple):
    """The text of a symbol and its place."""

    path: str
    line: int
    text: str


def run_python(body: str, namespace: dict[str, Any]) -> tuple[str, str]:
    """Run the body in `namespace`, and return the code to show and its output.

    Lines `# prints: ...` promise the whole output, one line each. They are not shown, because the output is. The line
    `# predict first` is not shown either. It folds the output until the reader has made a guess.

    Raises:
        FenceError: The code raised, or printed something else than it promises.
    """
    lines = body.splitlines()
    promised = [line.removeprefix(_PRINTS).strip() for line in lines if line.startswith(_PRINTS)]
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            exec(compile(body, "<fence>", "exec"), namespace)
    except (Exception, SystemExit) as error:
        raise FenceError(f"{type(error).__name__}: {error}", _guilty_line(error)) from error
    output = printed.getvalue().rstrip()
    if promised and [line.strip() for line in output.splitlines()] != promised:
        first = next(number for number, line in enumerate(lines) if line.startswith(_PRINTS))
        raise FenceError(f"promises {promised}, printed {output.splitlines()}", first)
    return "\n".join(line for line in lines if not line.startswith((_PRINTS, PREDICT))).strip(), output


def run_chart(body: str, namespace: dict[str, Any]) -> str:
    """Run the body in `namespace`, and return its last expression as HTML, without what only a notebook needs.

    Raises:
        FenceError: The code raised, or does not end with something that can be shown as HTML.
    """
    return plain(last_value(body, namespace, "_repr_html_", "chart"))


def run_instrument(body: str, namespace: dict[str, Any]) -> str:
    """Run the body in `namespace`, and return its last instrument, without the script that the page has.

    Raises:
        FenceError: The code raised, or does not end with an instrument.
    """
    return str(last_value(body, namespace, "fragment", "instrument").fragment())


def last_value(body: str, namespace: dict[str, Any], method: str, kind: str) -> Any:
    """Run the body, and return the value of its last expression. Raises `FenceError` if that lacks the method."""
    try:
        *before, last = ast.parse(body).body
        exec(compile(ast.Module(before, []), "<fence>", "exec"), namespace)
        shown: Any = None
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "<fence>", "eval"), namespace)
    except Exception as error:
        raise FenceError(f"{type(error).__name__}: {error}", _guilty_line(error)) from error
    if not hasattr(shown, method):
        raise FenceError(f"what stands last is no {kind}", last.lineno - 1)
    return shown


def _guilty_line(error: BaseException) -> int:
    """Return the line of the body, counted from 0, that raised."""
    if isinstance(error, SyntaxError):
        return (error.lineno or 1) - 1
    line, trace = 1, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<fence>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line - 1


def run_command(body: str, cpu_seconds: int = _CPU_S, wall_seconds: float = _WALL_S) -> str:
    """Run one `mini-kv ...` or `python -m mini_kv...` command in the repository's root, and return its output.

    Raises:
        FenceError: It is not such a command, it failed, it computes too long or hangs, or it names a path of this
            machine.
    """
    words = shlex.split(body)
    if words[:1] == ["mini-kv"]:
        arguments = ["-m", "mini_kv", *words[1:]]
    elif words[:2] == ["python", "-m"] and len(words) > 2 and words[2].split(".")[0] == "mini_kv":
        arguments = words[1:]
    else:
        raise FenceError(f"one `mini-kv ...` or `python -m mini_kv...` command belongs here, not {body.strip()!r}")
    if words[1:2] == ["replay"] and "--jobs" not in words:
        arguments += ["--jobs", "1"]  # it prints the same, and others would take longer to start than to compute
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {key: value for key, value in os.environ.items() if key != "LAB_IMPL"}
    env |= {"PYTHONPATH": path, "PYTHONUTF8": "1", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}
    try:
        done = subprocess.run(
            _limited([sys.executable, *arguments], cpu_seconds),
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=wall_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FenceError(f"no end after {wall_seconds:g} s: it hangs, or this machine is very busy") from None
    if os.name == "posix" and done.returncode == -signal.SIGXCPU:
        raise FenceError(f"computed longer than {cpu_seconds} s")
    if done.returncode:
        raise FenceError(f"exit status {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    if str(ROOT) in done.stdout:
        raise FenceError("prints a path of the machine that builds the book")
    return done.stdout.strip("\n")


def run_story(line: str, lang: str) -> dict[str, Any]:
    """Return the story of a line of `kv-story`, in this language."""
    what, _, how = line.partition(", ")
    name, _, player = what.partition(" by ")
    if name == "data":
        return pkgutil.resolve_name(player)()  # type: ignore[no-any-return]
    scenario = load_scenario(name, lang)
    scenario = replace(scenario, title=f"{scenario.title}: {how}") if how else scenario
    return played_data(scenario, pkgutil.resolve_name(player)(scenario)) if player else story_data(scenario)


def run_planes(body: str) -> dict[str, Any]:
    """Return the record of a run with PyTorch. Raises `FenceError` for a wrong field."""
    from mini_kv.course.lessons.torch_plane import recorded  # so that this module can be imported without torch

    return recorded(*_run_in(body))


def run_play(body: str) -> dict[str, Any]:
    """Return the run of a fence's first case, as the page "Play" shows it. Raises `FenceError` for a wrong field."""
    from mini_kv.course.lessons.torch_plane import played

    return played(*_run_in(body.partition(" | ")[0]))


def _run_in(fields: str) -> tuple[dict[str, str], str, Levers]:
    """Return the texts, the model and the levers of a case."""
    given = dict(parse_qsl(fields, strict_parsing=True))
    if said := problem(given):
        raise FenceError(said)
    texts = {name.upper(): given[name] for name in BOXES if name in given}
    return texts, given.get("model", "tiny"), Levers.of(given)


def _limited(command: list[str], cpu_seconds: int) -> list[str]:
    """Return the command with a limit of its CPU time. Windows has none."""
    if os.name != "posix":
        return command
    return ["sh", "-c", f'ulimit -S -t {cpu_seconds}; exec "$@"', "sh", *command]


def source_of(symbol: str) -> Source:
    """Return the source text of `package.module.Class.method`. Nothing is imported, so torch need not be there.

    A method may be inherited from a class of the same module. `folder/file.wgsl function` is a function in WGSL.

    Raises:
        FenceError: There is no such module or file, or no such name in it.
    """
    if " " in symbol.strip():
        return _find_in_wgsl(*symbol.split(maxsplit=1))
    parts = symbol.strip().split(".")
    for cut in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:cut]).with_suffix(".py")
        if path.is_file():
            return _find(path, parts[cut:], symbol.strip())
    raise FenceError(f"no module of this repository begins {symbol.strip()!r}")


def _find_in_wgsl(file: str, name: str) -> Source:
    """Return a function with the comments and attributes directly above it."""
    path = ROOT / file
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    first = next((i for i, line in enumerate(lines) if line.startswith(f"fn {name.strip()}(")), None)
    if first is None:
        raise FenceError(f"{file} has no function {name.strip()!r}")
    end = lines.index("}", first) + 1
    while lines[first - 1].startswith(("///", "@")):
        first -= 1
    return Source(file, first + 1, "\n".join(lines[first:end]))


def _find(path: Path, names: list[str], symbol: str) -> Source:
    text, file = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    if not names:
        return Source(file, 1, text.rstrip())
    module = ast.parse(text).body
    found: ast.stmt | None = None
    for name in names:
        found = _member(module, found, name)
        if found is None:
            break
    if found is None:
        raise FenceError(f"{file} has no {name!r} (asked for {symbol})")
    first = min([found.lineno, *(decorator.lineno for decorator in getattr(found, "decorator_list", []))])
    lines = text.splitlines()[first - 1 : found.end_lineno]
    return Source(file, first, textwrap.dedent("\n".join(lines)))


def _member(module: list[ast.stmt], owner: ast.stmt | None, name: str) -> ast.stmt | None:
    """Return the definition of `name` in a class, inherited or not, or in the module if `owner` is `None`."""
    for statement in reversed(module if owner is None else getattr(owner, "body", [])):
        if name in _names(statement):
            return statement
    for base in getattr(owner, "bases", []):
        parent = _member(module, None, base.id) if isinstance(base, ast.Name) else None
        if parent and (inherited := _member(module, parent, name)):
            return inherited
    return None


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


class Section(NamedTuple):
    """A section of the errata."""

    title: str
    proofs: list[str]
    """The code of its fences."""


def claims_in(body: str) -> list[Question]:
    """Return the claims of a fence. Raises `FenceError` for a claim with other choices than true and false."""
    try:
        claims = list(parsed(body, "kv-claims").values())
    except (ValueError, KeyError) as error:
        raise FenceError(f"{type(error).__name__}: {error}") from error
    for claim in claims:
        if set(claim.choices) != {"True", "False"}:
            raise FenceError(f"{claim.id}: the choices are True and False, not {', '.join(claim.choices)}")
    return claims


def section_of(anchor: str) -> Section:
    """Return a section of the errata. Raises `FenceError` if it does not exist or has no code."""
    section = rf"^### ([^\n]+) \{{ #{re.escape(anchor)} \}}\n(.*?)(?=^###? |\Z)"
    found = re.search(section, _ERRATA.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise FenceError(f"{_ERRATA.name} has no section #{anchor}")
    proofs = re.findall(r"^```kv-python\n(.*?)^```", found[2], re.MULTILINE | re.DOTALL)
    if not proofs:
        raise FenceError(f"{_ERRATA.name}#{anchor} has no code that proves it")
    return Section(found[1], proofs)
