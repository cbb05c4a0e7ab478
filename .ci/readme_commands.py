"""Run the commands that a README promises, in a fresh clone.

A comment on the line before a fenced block says what is to be done with it:

    <!-- run -->              run it with bash, in the clone's root; it must exit 0
    <!-- run exit=2 -->       the same, and it must exit 2 (an untouched starter is red)
    <!-- run venv -->         as in a shell where .venv is active
    <!-- run uv -->           run it where uv is installed, else only parse it
    <!-- run sample -->       run it with a sample of the tests, unless MINI_KV_LONG is set: the stage `test` runs all
    <!-- parse -->            check the syntax alone: for lines that need another system, or the network

Words combine: `<!-- run venv exit=1 -->`. A block in a shell's language without such a comment is an error:
no command goes unproven. Of PowerShell one form is known, `$env:NAME = "value"; command`: it is rewritten for
bash, so that a Windows line is run, or at least parsed, on Linux.

    python .ci/readme_commands.py [--only uv | --except uv] CLONE README.md ...
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHELLS = {"bash", "sh", "shell", "console", "powershell", "pwsh"}
NOT_A_NEWCOMERS = {"VIRTUAL_ENV", "LAB_IMPL", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MINI_KV_OPERATIONS"}
MARK = re.compile(r"^<!--\s*(run|parse)\b([^>]*?)-->\s*$")
FENCE = re.compile(r"^(```+)(\w*)")
SET_VARIABLE = re.compile(r"""^\$env:(\w+)\s*=\s*("[^"$`]*"|'[^']*')$""")


SAMPLE = "labs/lab-05 mini_kv/tests/test_golden.py mini_kv/tests/test_golden_scheduler.py"
SAMPLE_WITH_UV = "-p mini_kv.tests.sample"
"""Options for pytest. uv's run is the only one without PyTorch, so it collects all files and runs more of them."""


class Block(NamedTuple):
    """A marked block and where it stands."""

    where: str
    language: str
    text: str
    run: bool
    words: tuple[str, ...]

    @property
    def expected(self) -> int:
        """The exit status that the text promises."""
        return next((int(word.removeprefix("exit=")) for word in self.words if word.startswith("exit=")), 0)


def blocks(path: Path) -> Iterator[Block]:
    """Yield the marked blocks of a Markdown file.

    Raises:
        ValueError: A block in a shell's language has no mark, or a mark has an unknown word or no block.
    """
    mark: re.Match[str] | None = None
    fence, language, start, body = "", "", 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence:
            if line.strip() != fence:
                body.append(line)
                continue
            if language in SHELLS and mark is None:
                raise ValueError(f"{path}:{start}: commands without <!-- run --> or <!-- parse --> before them")
            if mark:
                where = f"{path}:{start}"
                yield Block(where, language, "\n".join(body) + "\n", mark[1] == "run", _words(mark[2], where))
            fence, mark = "", None
        elif opening := FENCE.match(line):
            fence, language, start, body = opening[1], opening[2], number, []
        elif found := MARK.match(line):
            mark = found
        elif mark and line.strip():
            raise ValueError(f"{path}:{number}: a mark must stand right before its block")


def _words(text: str, where: str) -> tuple[str, ...]:
    """Return the words of a mark; an unknown one is an error."""
    words = tuple(text.split())
    for word in words:
        if word not in {"venv", "uv", "sample"} and not re.fullmatch(r"exit=\d+", word):
            raise ValueError(f"{where}: unknown word {word!r} in the mark")
    return words


def to_bash(block: Block) -> str:
    """Rewrite the one known form of PowerShell; other languages are bash already."""
    if block.language not in {"powershell", "pwsh"}:
        return block.text
    lines = []
    for part in re.split(r"[;\n]", block.text.strip()):
        command = part.strip()
        if found := SET_VARIABLE.match(command):
            lines.append(f"export {found[1]}={found[2]}")
        elif re.search(r"[$`|&<>(){}]", command):
            raise ValueError(f"{block.where}: cannot rewrite this PowerShell for bash: {command}")
        else:
            lines.append(command)
    return "\n".join(lines) + "\n"


def run(script: str, clone: Path, words: tuple[str, ...], limit: float) -> int | None:
    """Run a script as a newcomer would, as the words of its mark say; `None` when it took too long."""
    env = {key: value for key, value in os.environ.items() if key not in NOT_A_NEWCOMERS}
    if "sample" in words and not os.environ.get("MINI_KV_LONG"):
        env["PYTEST_ADDOPTS"] = SAMPLE_WITH_UV if "uv" in words else SAMPLE
    if "venv" in words:
        env |= {"VIRTUAL_ENV": f"{clone}/.venv", "PATH": f"{clone}/.venv/bin{os.pathsep}{env['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=clone,
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the whole session: make's children too
        process.wait()
        return None


def check(block: Block, clone: Path, limit: float) -> str:
    """Parse the block, run it if it asks for that, and return what is wrong, or nothing."""
    script = to_bash(block)
    if subprocess.run(["bash", "-n", "-c", script], stdin=subprocess.DEVNULL, check=False).returncode:
        return "bash cannot parse it"
    no_uv = "uv" in block.words and not shutil.which("uv")
    if not block.run or no_uv:
        print(f"parsed {block.where}" + (" (uv is not installed)" if no_uv else ""), flush=True)
        return ""
    print("\n".join(f"$ {line}" for line in script.splitlines()), flush=True)
    start = time.monotonic()
    status = run(script, clone, block.words, limit)
    print(f"ran {block.where}: exit {status}, {time.monotonic() - start:.1f} s\n", flush=True)
    if status is None:
        return f"took longer than {limit:.0f} s"
    return "" if status == block.expected else f"exit {status}, promised {block.expected}"


def main() -> int:
    """Check the files named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="run the marked commands of READMEs in a clone")
    parser.add_argument("--only", metavar="WORD", help="only blocks marked so")
    parser.add_argument("--except", metavar="WORD", dest="without", help="no block marked so")
    parser.add_argument("--limit", type=float, default=600, help="seconds a block may take (default: 600)")
    parser.add_argument("clone", type=Path)
    parser.add_argument("files", nargs="+", help="paths inside the clone")
    args = parser.parse_args()
    os.chdir(args.clone)
    problems, count = [], 0
    for name in args.files:
        try:
            for block in blocks(Path(name)):
                if (args.only and args.only not in block.words) or args.without in block.words:
                    continue
                count += 1
                if problem := check(block, args.clone.resolve(), args.limit):
                    problems.append(f"{block.where}: {problem}")
        except ValueError as error:
            problems.append(str(error))
    print(f"{count} blocks, {len(problems)} wrong", *problems, sep="\n", flush=True)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
