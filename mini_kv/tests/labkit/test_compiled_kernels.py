"""What the interpreter takes and no GPU runs: the compiler's sentence and the learner's line, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.labkit.kernels.compiled import Compiled, compile_calls
from mini_kv.labkit.lab import load_lab

ROOT = Path(__file__).parents[3]

HEAD = """import triton
import triton.language as tl

LIMIT = 4

"""
KERNEL = """
@triton.jit
def {name}_kernel(x, n, N: tl.constexpr):
    lanes = tl.arange(0, N)
    total = tl.zeros([N], dtype=tl.float32)
{body}
    tl.store(x + lanes, total)


def {name}(x):
    {name}_kernel[(1,)](x, 3, N=16)

"""
REFUSED = {
    "scalar": (
        "    total = 0.0\n    for i in range(n):\n        total += tl.load(x + lanes)",
        "    for i in range(n):",
        "Loop-carried variable total has initial type fp32 but is re-assigned to <['16'], fp32> in loop",
    ),
    "half": (
        "    total = tl.zeros([N], tl.float16)\n    for i in range(n):\n        total = total + tl.load(x + lanes)",
        "    for i in range(n):",
        "Loop-carried variable total has initial type <['16'], fp16> but is re-assigned to <['16'], fp32> in loop",
    ),
    "leaving": (
        "    for i in range(9):\n        if i > n:\n            break\n        total += tl.load(x + lanes)",
        "            break",
        "unsupported AST node type: Break",
    ),
    "returning": (
        "    for i in range(9):\n        if i > n:\n            return\n        total += tl.load(x + lanes)",
        "        if i > n:",
        "Cannot have `return` statements inside `while` or `for` statements in triton.",
    ),
    "number": (
        "    total += int(tl.load(x))",
        "    total += int(tl.load(x))",
        "int() argument must be a string, a bytes-like object or a real number, not 'tensor'",
    ),
    "module_constant": (
        "    total += LIMIT",
        "    total += LIMIT",
        "Cannot access global variable LIMIT from within @jit'ed function",
    ),
    "comprehension": (
        "    rows = [tl.load(x + i) for i in range(2)]",
        "    rows = [tl.load(x + i) for i in range(2)]",
        "only tuple comprehensions are supported",
    ),
}
"""Body of the kernel, the line at fault, the compiler's sentence."""


@pytest.fixture
def torch():
    """PyTorch; and Triton must be there."""
    missing = load_lab(ROOT / "labs" / "lab-10").missing
    if missing is not None:
        pytest.skip(missing)
    import torch

    return torch


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_no_compiler_takes_is_refused_with_its_line(tmp_path: Path, torch):
    """Seven kernels that run under the interpreter, and one that compiles, all in one file."""
    bodies = {name: body for name, (body, _, _) in REFUSED.items()} | {"right": "    total += tl.load(x + lanes)"}
    file = tmp_path / "kernels.py"
    file.write_text(HEAD + "\n".join(KERNEL.format(name=name, body=body) for name, body in bodies.items()), "utf-8")
    found = compile_calls(str(file), {name: [torch.zeros(16)] for name in bodies})
    assert found["right"] == Compiled(["right_kernel"])
    lines = file.read_text("utf-8").splitlines()
    assert {name: found[name].error for name in REFUSED} == {name: error for name, (_, _, error) in REFUSED.items()}
    assert {name: lines[found[name].line - 1] for name in REFUSED} == {name: at for name, (_, at, _) in REFUSED.items()}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_launcher_that_breaks_down_and_a_process_that_ends(tmp_path: Path, torch):
    """An error of the launcher's own is told without a line; a file that ends Python says with which status."""
    file = tmp_path / "kernels.py"
    file.write_text("print('hello')\n\n\ndef launch(x):\n    raise ValueError('no such grid. Try two')\n", "utf-8")
    assert compile_calls(str(file), {"launch": [torch.zeros(1)]}) == {"launch": Compiled([], "no such grid")}
    file.write_text("import os\n\nos._exit(3)\n", "utf-8")
    found = compile_calls(str(file), {"launch": [torch.zeros(1)]})
    assert found == {"launch": Compiled([], "the compiler ended with status 3: without a word")}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_refusal_in_the_labs_form(tmp_path: Path, torch):
    """The solution with a `break`, run with the interpreter's own switch set as well: one test fails."""
    text = (ROOT / "solutions/lab-10/solution.py").read_text("utf-8")
    loop = "    for index in range(tl.cdiv(seq_len, BLOCK_SIZE)):\n"
    wrong = "    for index in range(table_stride):\n        if index * BLOCK_SIZE >= seq_len:\n            break\n"
    file = tmp_path / "mine.py"
    file.write_text(text.replace(loop, wrong), "utf-8")
    environment = os.environ | {"LAB_IMPL": str(file), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "labs/lab-10", "-k", "compiles or odd"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    start = done.stdout.index("lab-10  test_10")
    assert done.stdout[start:].splitlines()[:4] == [
        "lab-10  test_10_the_reader_compiles",
        "Triton's compiler, for a GPU of capability 9.0: unsupported AST node type: Break",
        "   expected  code for the GPU",
        "   got       an error",
    ]
    assert f"mine.py:{file.read_text('utf-8').splitlines().index('            break') + 1}  break" in done.stdout
    assert done.stdout.count("PASS  ") == 3
