"""What the interpreter takes and no GPU runs: the compiler's sentence and the learner's line, without a GPU."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from mini_kv.course.given.kernels import compiled
from mini_kv.course.given.kernels.compiled import (
    Card,
    Compiled,
    compile_calls,
    compile_request,
    draw_cards,
    kept_compiler,
    load_widths,
    spilled,
)
from mini_kv.course.labkit.lab import load_lab
from mini_kv.course.labkit.time_limit import NoVerdictError

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


@pytest.fixture(params=[nullcontext, kept_compiler], ids=["a process each time", "forks of one that is kept"])
def process(request: pytest.FixtureRequest) -> Iterator[None]:
    """The process that compiles."""
    with request.param():
        yield
    compiled._FOUND.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_what_no_compiler_takes_is_refused_with_its_line(tmp_path: Path, torch):
    """Seven kernels that run under the interpreter, and one that compiles, all in one file."""
    bodies = {name: body for name, (body, _, _) in REFUSED.items()} | {"right": "    total += tl.load(x + lanes)"}
    file = tmp_path / "kernels.py"
    file.write_text(HEAD + "\n".join(KERNEL.format(name=name, body=body) for name, body in bodies.items()), "utf-8")
    found = compile_calls(str(file), {name: [torch.zeros(16)] for name in bodies})
    assert (found["right"].error, [card.kernel for card in found["right"].kernels]) == ("", ["right_kernel"])
    lines = file.read_text("utf-8").splitlines()
    assert {name: found[name].error for name in REFUSED} == {name: error for name, (_, _, error) in REFUSED.items()}
    assert {name: lines[found[name].line - 1] for name in REFUSED} == {name: at for name, (_, at, _) in REFUSED.items()}


def test_a_file_that_computes_too_long_is_an_error_of_each_launcher(tmp_path: Path, capsys):
    file = tmp_path / "kernels.py"
    file.write_text("while True: pass\n", "utf-8")
    compile_request(pickle.dumps((str(file), {"launch": []})), 0.05)
    assert json.loads(capsys.readouterr().out) == {
        "launch": {"kernels": [], "error": "no end after 0.05 s of computing", "line": 0}
    }


def test_a_busy_machine_gives_no_verdict_of_the_compiler(tmp_path: Path, capsys):
    """The process says so, and the test that asked for it has none either."""
    file = tmp_path / "kernels.py"
    busy = "from mini_kv.course.labkit.time_limit import NoVerdictError\nraise NoVerdictError\n"
    file.write_text(busy, "utf-8")
    compile_request(pickle.dumps((str(file), {"launch": []})))
    assert json.loads(capsys.readouterr().out) is None
    with pytest.raises(NoVerdictError):
        compile_calls(str(file), {"launch": []})


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_launcher_that_breaks_down_and_a_process_that_ends(tmp_path: Path, torch):
    """An error of the launcher's own is told without a line; a file that ends Python says with which status."""
    file = tmp_path / "kernels.py"
    file.write_text("print('hello')\n\n\ndef launch(x):\n    raise ValueError('no such grid. Try two')\n", "utf-8")
    assert compile_calls(str(file), {"launch": [torch.zeros(1)]}) == {"launch": Compiled([], "no such grid")}
    file.write_text("import os\n\nos._exit(3)\n", "utf-8")
    found = compile_calls(str(file), {"launch": [torch.zeros(1)]})
    assert found == {"launch": Compiled([], "the compiler ended with status 3: without a word")}


@pytest.mark.slow
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


def test_a_card_as_it_is_shown():
    """Loads of one width are counted together, the widest first; a kernel of two tests is shown once."""
    copy = Card("copy_kernel", registers=18, spills=0, shared=0, loads=(32, 128, 128))
    big = Card("big_kernel", registers=255, spills=1040, shared=71680, loads=())
    assert draw_cards([]) == []
    assert draw_cards([copy, big, copy]) == [
        "  card, capability 9.0          registers    spills     shared   loads x bits",
        "  copy_kernel                          18       0 B        0 B   2x128 1x32",
        "  big_kernel                          255    1040 B    71680 B   none",
    ]


def test_a_card_is_read_from_ptx_and_from_the_assembler():
    """Plain loads, vectors, loads with a cache's policy, copies to shared memory; stores are none of them."""
    ptx = """
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.global.L1::evict_last.v2.b16 { %rs1, %rs2 }, [ %rd2 ];
        ld.shared.b32 %r5, [ %r6 ];
        cp.async.cg.shared.global [ %r7 + 0 ], [ %rd3 + 0 ], 0x10, %r8;
        ld.global.b64 %rd4, [ %rd5 ];
        st.global.v4.b32 [ %rd6 ], { %r1, %r2, %r3, %r4 };
    """
    assert load_widths(ptx) == (128, 32, 128, 64)
    said = "ptxas info : 1040 bytes stack frame, 1036 bytes spill stores, 1044 bytes spill loads"
    assert spilled(said) == 2080
    with pytest.raises(ValueError, match="did not print"):
        spilled("ptxas: no such option")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["lab-10", "lab-10-ladder"])
def test_cards_after_the_compile_tests_have_passed(torch, folder: str):
    """Each kernel of the reference solution has a line; none of them spills."""
    environment = os.environ | {"LAB_IMPL": "solution"}
    command = [sys.executable, "-m", "pytest", "-q", f"labs/{folder}", "-k", "compiles"]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout
    start = said.index("  card, capability 9.0")
    names = {
        "lab-10": ["reshape_and_cache_kernel", "paged_attention_decode_kernel"],
        "lab-10-ladder": [f"{f.name}_kernel" for f in load_lab(ROOT / "labs" / folder).functions],
    }[folder]
    rows = [line.split() for line in said[start:].splitlines()[1 : 1 + len(names)]]
    assert [row[0] for row in rows] == names
    assert [row[2] for row in rows] == ["0"] * len(names)
    assert all(int(row[1]) > 0 for row in rows)
