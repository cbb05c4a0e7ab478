"""The kernels as machine code, for GPUs that need not be there: no spills, wide loads, tensor cores, shared memory.

Quick tests look at what was recorded for exactly this code (book/data/kernels.json), and compile a few launches again
to compare. `make audit` compiles all launches for one of 8.0, 9.0 and 10.0 again, drawn by the commit's tree; for all
three with MINI_KV_LONG, or with a Triton of which nothing was recorded. For 8.6, 8.9, 12.0, and with an older Triton,
they are compiled when a kernel changes, since the recording must be of the same code.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: make test, or pip install triton")

import triton

from mini_kv.attention.triton_plan import (
    Call,
    Tiles,
    max_rows,
    pick_tiles,
    programs_per_multiprocessor,
    shared_memory,
    version_text,
)
from mini_kv.tests.attention.compiled import fingerprint, load_recording
from mini_kv.tests.attention.launches import BYTES, CAPABILITIES, RELATIVES, launches
from mini_kv.tests.tree import drawn

ROOT = Path(__file__).parents[3]
ALL = (*CAPABILITIES, *RELATIVES)
RECORDED = {"3.7.1": ALL, "3.6.0": ((9, 0),)}
"""Versions of Triton and the compute capabilities that each has compiled for."""
SAMPLE = ["decode bf16", "decode fp32", "prefill bf16, int8 cache", "write bf16, int8 cache"]


@pytest.fixture(scope="module")
def recording():
    return load_recording()


@pytest.fixture(params=[(v, c) for v, capabilities in RECORDED.items() for c in capabilities], ids=str)
def compiled(request, recording):
    """Return a compute capability, its launches by name, and what a version of Triton made of each."""
    version, capability = request.param
    named = {launch.name: launch for launch in launches(capability)}
    return capability, named, recording["triton"][version][version_text(capability)]


def attention(found, what):
    """Return the facts of the launches whose names begin so."""
    return {name: facts for name, facts in found.items() if name.startswith(what)}


def test_the_recording_is_of_these_kernels(recording):
    how = (
        "the kernels or their tiles have changed: python -m mini_kv.tests.attention.compiled --write, with each Triton"
    )
    assert recording["source"] == fingerprint(), how
    assert {version: set(found) for version, found in recording["triton"].items()} == {
        version: {version_text(one) for one in capabilities} for version, capabilities in RECORDED.items()
    }


def test_every_launch_is_compiled(compiled):
    _, named, found = compiled
    assert list(found) == list(named)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=version_text)
def test_all_tiles_that_the_plan_can_choose_are_compiled(capability):
    """Each with its dtypes, at that head size or a larger one, which takes more registers."""
    largest: dict[object, int] = {}
    for launch in launches(capability):
        if launch.kernel == "attend_kernel":
            constants = launch.constants
            tiles = Tiles(constants["BLOCK_M"], constants["TILE"], launch.num_warps, launch.num_stages)
            key = (BYTES[launch.query], BYTES[launch.cache], tiles)
            largest[key] = max(largest.get(key, 0), constants["HEAD_SIZE"])
    dtypes, head_sizes = ((2, 2), (2, 1), (4, 4), (4, 1)), (16, 64, 80, 128, 192, 256)
    groups, query_lens = (1, 2, 4, 7, 8, 16, 32, 64, 71, 128), (1, 2, 4, 8, 16, 64, 4096)
    for (query, cache), head_size, group, query_len in product(dtypes, head_sizes, groups, query_lens):
        call = Call(query, cache, head_size, group, query_len)
        if group <= max_rows(call, capability):
            assert largest.get((query, cache, pick_tiles(call, capability)), 0) >= head_size, call


SPILLED = {
    "3.7.1": {"decode bf16, int8 cache, every option": 6},
    "3.6.0": {"decode bf16, int8 cache": 4, "decode bf16, int8 cache, every option": 8, "decode bf16, fp8 cache": 8},
}
"""On compute capability 9.0, by Triton's version: 8-bit keys in tiles of 128 positions.

Measured on an H200 with 3.6.0: 0.79 of the time of 16 bits. Tiles of 64 positions spill nothing and take 1.07.
On an H100: 0.60 and 0.75.
"""


def spilled(found):
    """Return the launches that put registers off to memory, with how many loads and stores that takes."""
    return {name: facts["spills"] for name, facts in found.items() if facts["spills"]}


def test_no_register_is_spilled_to_memory_but_where_the_clock_said_so(recording):
    for version, tables in recording["triton"].items():
        assert {capability: spilled(found) for capability, found in tables.items() if spilled(found)} == {
            "9.0": SPILLED[version]
        }


def test_every_program_fits_in_shared_memory(compiled):
    capability, _, found = compiled
    assert max(facts["shared"] for facts in found.values()) <= shared_memory(capability) - 1024


def test_the_plan_counts_on_as_many_programs_as_the_compiler_allows(compiled):
    """Never on more; and for the headline, decode of 16-bit keys on an H100 or H200, on exactly as many."""
    capability, named, found = compiled
    for name in attention(found, "decode"):
        launch = named[name]
        call = Call(BYTES[launch.query], BYTES[launch.cache], launch.constants["HEAD_SIZE"], 4, 1)
        counted = programs_per_multiprocessor(call, capability, launch.num_warps)
        assert 1 <= counted <= found[name]["programs"], name
    if capability == (9, 0):
        call = Call(2, 2, 128, 4, 1)
        assert programs_per_multiprocessor(call, capability, 4) == found["decode bf16"]["programs"] == 3


def test_keys_and_values_are_loaded_asynchronously_16_bytes_a_thread(compiled):
    _, named, found = compiled
    for name, facts in attention(found, ("decode", "prefill")).items():
        assert facts["wide_loads"] + facts["narrow_loads"] > 0, name
        if named[name].cache not in ("int8", "fp8"):
            assert facts["wide_loads"] > facts["narrow_loads"] == 0, name


def test_two_tiles_are_in_flight_while_one_is_computed(compiled):
    """The ids of the next tile's blocks are loaded ahead, without which the pipeliner keeps one buffer only."""
    _, _, found = compiled
    tile_of_keys_and_values = 2 * 64 * 128 * 2
    assert found["decode bf16"]["shared"] > 2 * tile_of_keys_and_values


def test_prompts_use_the_large_tensor_core_instructions(compiled):
    capability, _, found = compiled
    instruction = {(9, 0): "HGMMA", (10, 0): "UTCHMMA"}.get(capability, "HMMA")
    assert instruction in found["prefill bf16"]["tensor_cores"].split()


def recompiled(capability, *names):
    """Return what the installed Triton makes of the launches. In another process: this one may interpret kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    only = ["--only", *names] if names else []
    done = subprocess.run(
        [sys.executable, "-m", "mini_kv.tests.attention.compiled", "--json", "--capability", capability, *only],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)[capability]


@pytest.mark.slow
def test_some_launches_are_compiled_as_they_were_recorded(recording):
    found = recompiled("9.0", *SAMPLE)
    recorded = recording["triton"].get(triton.__version__, {}).get("9.0", found)
    assert found == {name: recorded[name] for name in found}
    assert spilled(found) == {}


def compiled_again() -> list[str]:
    """Return the compute capabilities to compile for. Each costs three minutes of CPU."""
    all_of_them = [version_text(one) for one in CAPABILITIES]
    if os.environ.get("MINI_KV_LONG") or triton.__version__ not in RECORDED:
        return all_of_them
    return [all_of_them[drawn("capability", len(all_of_them))]]


@pytest.mark.audit
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("capability", compiled_again())
def test_all_launches_are_compiled_as_they_were_recorded(capability, recording):
    found = recompiled(capability)
    assert found == recording["triton"].get(triton.__version__, {}).get(capability, found)
    assert spilled(found) == (SPILLED.get(triton.__version__, {}) if capability == "9.0" else {})
