"""The labs' view of a kernel's memory: lanes are counted, strays are stopped and drawn, and nothing of it stays."""
# mypy: disable-error-code="untyped-decorator"

import os

import pytest

pytest.importorskip("triton", reason="the kernels need triton: make test, or pip install triton")

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.interpreter import InterpretedFunction, interpreter_builder
from triton.runtime.jit import JITFunction

from mini_kv.course.given.kernels.interpreter import interpreted
from mini_kv.course.given.kernels.memory_access import KernelMemory, draw_lanes
from mini_kv.course.labkit.fixture import LabFailure

with interpreted():

    @triton.jit
    def doubled(x):
        return 2 * x

    @triton.jit
    def copy_kernel(target, source, length, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HAS_OTHER: tl.constexpr):
        rows, columns = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT), tl.arange(0, WIDTH)
        lanes = rows[:, None] * WIDTH + columns[None, :]
        if HAS_OTHER:
            x = tl.load(source + lanes, mask=lanes < length, other=0.0)
        else:
            x = tl.load(source + lanes, mask=lanes < length)
        tl.store(target + lanes, doubled(x) + 0 * tl.sum(x, 1)[:, None])


def test_lanes_are_counted_by_tensor():
    source, target = torch.arange(8.0), torch.zeros(8)
    memory = KernelMemory(source=source, target=target)
    with memory.watch():
        copy_kernel[(2,)](target, source, 6, 1, 4, True)
    assert target.tolist() == [0, 2, 4, 6, 8, 10, 0, 0]
    assert memory.lanes_read() == {"source": 6}
    assert memory.lanes_written() == {"target": 8}
    assert memory.loads() == {"source": 2}
    assert [access.indices[0].tolist() for access in memory.accesses if access.is_load] == [[0, 1, 2, 3], [4, 5]]


def test_a_masked_lane_without_other_holds_nothing_that_one_would_want():
    target = torch.zeros(4)
    with KernelMemory().watch():
        copy_kernel[(1,)](target, torch.ones(4), 3, 1, 4, False)
    assert target.isnan().tolist() == [True, True, True, True]  # the row's sum has it


def test_a_stray_lane_stops_the_kernel_before_anything_is_written():
    source, target = torch.arange(6.0), torch.full((8,), -1.0)
    with pytest.raises(LabFailure) as caught, KernelMemory(source=source, target=target).watch():
        copy_kernel[(1,)](target, source, 8, 2, 4, True)
    failure = caught.value
    assert failure.what == "program (0,) reads outside of source"
    assert failure.got == "2 of 8 lanes outside, the first one 1 number behind the end of source"
    assert list(failure.picture) == [
        "lanes     o inside   . masked off   X outside",
        "      0   oooo",
        "      1   ooXX",
    ]
    assert target.tolist() == [-1.0] * 8


def test_a_lane_that_falls_into_another_tensor_is_astray_too():
    both = torch.arange(14.0)
    source, target = both[:6], both[6:]
    with pytest.raises(LabFailure) as caught, KernelMemory(source=source, target=target).watch():
        copy_kernel[(1,)](target, source, 8, 2, 4, True)
    assert caught.value.what == "program (0,) reads outside of source"
    assert both.tolist() == list(range(14))


def test_a_gap_of_a_view_is_outside():
    """Every second row is the view's; the rows between belong to another tensor."""
    whole = torch.zeros(4, 4)
    with pytest.raises(LabFailure) as caught, KernelMemory(source=whole[::2]).watch():
        copy_kernel[(1,)](torch.zeros(8), whole[::2], 8, 2, 4, True)
    assert caught.value.got == "4 of 8 lanes outside, the first one in a gap of source"


def test_a_drawing_joins_equal_rows_and_cuts_wide_ones():
    assert draw_lanes("oo" * 3 + "X.", (4, 2))[1:] == ["    0-2   oo", "      3   X."]
    assert draw_lanes("o" * 100, (100,))[1:] == ["      0   " + "o" * 60 + " ..."]
    assert draw_lanes("oXoooXXX", (8, 1))[1:] == [
        "      0   o",
        "      1   X",
        "    2-4   o",
        "    5-7   X",
    ]
    assert draw_lanes("oX" * 4, (8, 1))[-1] == "          and 4 rows more"


def test_nothing_of_it_stays():
    """Neither the switch nor the patches stay: a kernel defined afterwards runs as the process is set to run it."""
    before = (knobs.runtime.interpret, JITFunction.__call__, InterpretedFunction.__call__, tl.sum, tl.tensor.__add__)
    environment, load = dict(os.environ), type(interpreter_builder).create_masked_load
    with KernelMemory().watch():
        copy_kernel[(1,)](torch.zeros(4), torch.ones(4), 4, 1, 4, True)
    after = (knobs.runtime.interpret, JITFunction.__call__, InterpretedFunction.__call__, tl.sum, tl.tensor.__add__)
    assert after == before
    assert dict(os.environ) == environment
    assert type(interpreter_builder).create_masked_load is load
