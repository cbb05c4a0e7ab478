"""Compiles a learner's kernels with Triton's compiler, for a GPU that need not be present.

The interpreter accepts all Python. The compiler does not. So the launchers run once more, in a separate process, with
plain triton and a driver that names a GPU that is not present. Each kernel that they start is compiled but not run. A
compiled kernel has a `Card` with its resources. The process reads the file's path and the calls from stdin, pickled,
and writes JSON. With `--keep` it accepts many requests, because the audit sends hundreds of them.
"""

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

from mini_kv.course.labkit.fixture import InWords, LabFailure, LabUnderTest
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.time_limit import NoVerdictError, TookTooLongError, hard_limit, time_limit

COMPILE_S = 60
"""Seconds that the process may compute for a file. It needs ten, most of them to import PyTorch and Triton."""
CAPABILITY = 90
"""Ten times the compute capability of the GPU that the kernels are compiled for: an H100 or H200."""


@dataclass(frozen=True, slots=True)
class Card:
    """The resources of a multiprocessor that one kernel uses."""

    kernel: str
    registers: int
    """Registers per thread."""
    spills: int
    """Bytes per thread that are spilled to memory, because there were too few registers."""
    shared: int
    """Bytes of shared memory per program."""
    loads: Sequence[int]
    """Bits per thread of each load from global memory, in the order of the code."""

    def __str__(self) -> str:
        widths = " ".join(f"{self.loads.count(bits)}x{bits}" for bits in sorted(set(self.loads), reverse=True))
        costs = f"{self.registers:>9}{self.spills:>8} B{self.shared:>9} B"
        return f"  {self.kernel:<30}{costs}   {widths or 'none'}"


def draw_cards(cards: Sequence[Card]) -> list[str]:
    """Return a table of the kernels' cards, or no lines without a card."""
    head = f"  {f'card, capability {CAPABILITY / 10}':<30}registers    spills     shared   loads x bits"
    return [head, *(str(card) for card in dict.fromkeys(cards))] if cards else []


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of compiling one launcher's kernels."""

    kernels: list[Card]
    """The compiled kernels."""
    error: str = ""
    """The compiler's sentence about the refused kernel."""
    line: int = 0
    """The learner's line for that sentence, or 0 if not known."""


def refuse_what_no_compiler_takes(lab: LabUnderTest, launcher: str, calls: Mapping[str, Sequence[object]]) -> None:
    """Compile the kernels that these launchers start, once for all tests. Fail for an error in this launcher's."""
    with lab.elsewhere():
        found = compile_calls(lab.implementation.file, calls)[launcher]
    if found.error:
        what = f"Triton's compiler, for a GPU of capability {CAPABILITY / 10}: {found.error}"
        failure = LabFailure(what, "code for the GPU", InWords("an error"))
        failure.line = found.line
        raise failure
    if not found.kernels:
        lab.fail("kernels that the launcher started", "at least one", 0)
    lab.table = draw_cards(found.kernels)


_COMMAND = (sys.executable, "-m", __name__)
_FOUND: dict[tuple[str, ...], dict[str, Compiled]] = {}
"""Results by the text of the learner's file and the launchers. Each is compiled once per process, for all tests."""


def compile_calls(source: str, calls: Mapping[str, Sequence[object]]) -> dict[str, Compiled]:
    """Return the result of each launcher of this file, called with these arguments.

    The process has a time limit of its own. Raises `NoVerdictError` if this machine is too busy.
    """
    text = Path(source).read_text(encoding="utf-8")
    key = (text, *calls)
    if key not in _FOUND:
        request = pickle.dumps((source, dict(calls)))
        status, out, err = _ask_kept(_KEPT[0], request) if _KEPT else _ask(request)
        if status:
            last = (err.decode(errors="replace").splitlines() or ["without a word"])[-1]
            return dict.fromkeys(calls, Compiled([], f"the compiler ended with status {status}: {last}"))
        answer = json.loads(out)
        if answer is None:
            raise NoVerdictError("no verdict from the compiler: this machine is busy, or the code waits")
        _FOUND[key] = {name: _read(found) for name, found in answer.items()}
    return _FOUND[key]


_Answer = tuple[int, bytes, bytes]
"""A process's status, and what it wrote to stdout and stderr."""

_KEPT: list[subprocess.Popen[bytes]] = []
"""The process that compiles while `kept_compiler` lasts."""


@contextmanager
def kept_compiler() -> Iterator[None]:
    """While the context lasts, compile in forks of one process, which imports PyTorch and Triton once: it takes 3 s."""
    with subprocess.Popen([*_COMMAND, "--keep"], env=_environment(), stdin=PIPE, stdout=PIPE) as process:
        _KEPT.append(process)
        try:
            yield
        finally:
            _KEPT.pop()


def _ask(request: bytes) -> _Answer:
    done = subprocess.run(_COMMAND, env=_environment(), input=request, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def _ask_kept(process: subprocess.Popen[bytes], request: bytes) -> _Answer:
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process that compiles has no pipes")
    process.stdin.write(len(request).to_bytes(8, "big") + request)
    process.stdin.flush()
    answer: _Answer = pickle.load(process.stdout)
    return answer


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)}


def _read(found: dict[str, Any]) -> Compiled:
    cards = [Card(**card | {"loads": tuple(card["loads"])}) for card in found.pop("kernels")]
    return Compiled(cards, **found)


def _compile_launches(launcher: Callable[..., object], arguments: Sequence[object]) -> Compiled:
    """Call a launcher, and compile each kernel in place of its start."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels: list[Card] = []
    target = GPUTarget("cuda", CAPABILITY, 32)

    def instead_of_a_launch(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        source = ASTSource(fn.jit_function, compile["signature"], compile["constants"], compile["configs"][0])
        options = {name: compile[name] for name in ("num_warps", "num_stages")}
        kernels.append(_card(fn.name.rpartition(".")[2], triton.compile(source, target=target, options=options)))
        return True  # it is in a cache already, triton is told: then there is nothing to start

    driver = SimpleNamespace(  # it names a GPU, and there is none
        get_current_device=lambda: 0, get_current_stream=lambda _: 0, get_current_target=lambda: target
    )
    triton.runtime.driver.set_active(driver)
    triton.knobs.runtime.jit_cache_hook = instead_of_a_launch
    try:
        launcher(*arguments)
    except Exception as error:  # whatever the compiler, or the learner's code, breaks down with
        return Compiled(kernels, *_sentence_and_line(error, launcher.__globals__))
    return Compiled(kernels)


def _card(name: str, compiled: Any) -> Card:
    """Return the resources of a compiled kernel, from its PTX and from the output of NVIDIA's assembler."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    ptx: str = compiled.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx, encoding="utf-8")
        command = [get_ptxas(CAPABILITY).path, "-v", f"--gpu-name={sm_arch_from_capability(CAPABILITY)}"]
        said = subprocess.run(
            [*command, file, "-o", file.with_suffix(".cubin")], capture_output=True, text=True, check=True
        ).stderr
    return Card(name, _number(r"Used (\d+) registers", said), spilled(said), compiled.metadata.shared, load_widths(ptx))


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the assembler did not print {pattern}: {text}")
    return int(found[1])


def spilled(said: str) -> int:
    """Return the bytes that are stored and loaded again, from the output of `ptxas -v`.

    >>> spilled("0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads")
    20
    """
    return sum(_number(rf"(\d+) bytes spill {way}", said) for way in ("stores", "loads"))


def load_widths(ptx: str) -> tuple[int, ...]:
    """Return the bits per thread of each load from global memory, directly or through shared memory.

    >>> load_widths("ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 ];  ld.global.L1::evict_last.b16 %rs1, [ %rd2 ];")
    (128, 16)
    >>> load_widths("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;")
    (128,)
    """
    widths = []
    for load in re.finditer(r"ld\.global[\w.:]*?(?:\.v(\d))?\.[bfus](\d+)\b|cp\.async[^;]*?\], (0x\w+|\d+)", ptx):
        vector, bits, copied = load.groups()
        widths.append(8 * int(copied, 0) if copied else int(vector or 1) * int(bits))
    return tuple(widths)


def _sentence_and_line(error: BaseException | None, names: Mapping[str, object]) -> tuple[str, int]:
    """Return the first sentence of the compiler's message, and the line of the learner's innermost kernel."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.jit import JITFunction, get_jit_fn_file_line

    first_lines = {k.src: get_jit_fn_file_line(k)[1] for k in names.values() if isinstance(k, JITFunction)}
    line, cause = 0, error
    while cause is not None:
        error, cause = cause, cause.__cause__
        if isinstance(error, CompilationError) and error.src in first_lines:
            line = first_lines[error.src] + error.node.lineno - 1
    said = str(getattr(error, "error_message", None) or error).strip()
    said = re.sub(r"""^\w+\((['"])(.*)\1\)$""", r"\2", said, flags=re.DOTALL)  # an exception as it prints itself
    return re.split(r"[.!;] |\n|\\n", said)[0], line


def keep() -> None:
    """Compile each request of the parent process in a fork of this one, until the requests end."""
    import torch  # noqa: F401
    import triton.compiler  # noqa: F401

    while size := sys.stdin.buffer.read(8):
        answer = _in_a_fork(sys.stdin.buffer.read(int.from_bytes(size, "big")))
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _in_a_fork(request: bytes) -> _Answer:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 1
            try:
                compile_request(request)
                status = 0
            except BaseException:  # whatever ended a process of its own
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(ended), out.read(), err.read()


def compile_request(request: bytes, cpu_seconds: float = COMPILE_S) -> None:
    """Compile the launchers of a file, both pickled in the request, and print the results. Without a verdict: null."""
    source, calls = pickle.loads(request)
    try:
        # What the learner's file prints goes to stderr.
        with hard_limit(cpu_seconds, 2), time_limit(cpu_seconds), redirect_stdout(sys.stderr):
            module = load_file(Path(source))
            found = {name: _compile_launches(getattr(module, name), arguments) for name, arguments in calls.items()}
    except NoVerdictError:
        print("null")
        return
    except TookTooLongError as error:
        found = dict.fromkeys(calls, Compiled([], str(error).partition(":")[0]))
    print(json.dumps({name: asdict(each) for name, each in found.items()}))


if __name__ == "__main__":
    keep() if sys.argv[1:] == ["--keep"] else compile_request(sys.stdin.buffer.read())
