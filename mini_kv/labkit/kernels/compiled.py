"""What Triton's compiler says of a learner's kernels, for a GPU that need not be there.

The interpreter takes what Python takes; the compiler does not. So the launchers run once more, in a process of their
own, with triton as it comes and a driver that names a GPU and has none: each kernel that they start is compiled and
goes nowhere. The process reads the file's path and the calls from stdin, pickled, and writes JSON.
"""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mini_kv.labkit.implementation import load_file

CAPABILITY = 90
"""Ten times the compute capability of the GPU that the kernels are compiled for: an H100 or H200."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one launcher's kernels."""

    kernels: list[str]
    """Names of those that the compiler took."""
    error: str = ""
    """The compiler's sentence about the one that it refused."""
    line: int = 0
    """The learner's line that the sentence is about; 0 if none is known."""


_FOUND: dict[str, dict[str, Compiled]] = {}
"""By the text of the learner's file: the same text is compiled once in a process, for all of its tests."""


def compile_calls(source: str, calls: Mapping[str, Sequence[object]]) -> dict[str, Compiled]:
    """Return what became of each launcher of this file, called with these arguments."""
    text = Path(source).read_text(encoding="utf-8")
    if text not in _FOUND:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=pickle.dumps((source, dict(calls))),
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.decode(errors="replace").splitlines() or ["without a word"])[-1]
            return dict.fromkeys(calls, Compiled([], f"the compiler ended with status {done.returncode}: {last}"))
        _FOUND[text] = {name: Compiled(**found) for name, found in json.loads(done.stdout).items()}
    return _FOUND[text]


def _compile_launches(launcher: Callable[..., object], arguments: Sequence[object]) -> Compiled:
    """Call a launcher; compile each kernel where it would be started."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels: list[str] = []
    target = GPUTarget("cuda", CAPABILITY, 32)

    def instead_of_a_launch(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        source = ASTSource(fn.jit_function, compile["signature"], compile["constants"], compile["configs"][0])
        triton.compile(source, target=target, options={name: compile[name] for name in ("num_warps", "num_stages")})
        kernels.append(fn.name)
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


def _sentence_and_line(error: BaseException | None, names: Mapping[str, object]) -> tuple[str, int]:
    """Return the first sentence of what the compiler says, and the line of the learner's innermost kernel."""
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


def main() -> None:
    """Compile for the process that asks."""
    source, calls = pickle.load(sys.stdin.buffer)
    with redirect_stdout(sys.stderr):  # what the learner's file prints
        module = load_file(Path(source))
        found = {name: _compile_launches(getattr(module, name), arguments) for name, arguments in calls.items()}
    print(json.dumps({name: asdict(each) for name, each in found.items()}))


if __name__ == "__main__":
    main()
