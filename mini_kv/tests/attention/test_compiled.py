"""The kernels as machine code, for GPUs that need not be there: no spills, wide loads, tensor cores, shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: make test, or pip install triton")

ROOT = Path(__file__).parents[3]
SHARED_MEMORY = {80: 163, 90: 227, 100: 227}  # KB a program may have, by compute capability
CAPABILITIES = list(SHARED_MEMORY)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=CAPABILITIES)
def compiled(request):
    """Return the capability, and for each case what it needs. In another process: this one may interpret kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "mini_kv.tests.attention.compiled", str(request.param)]
    found = subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return request.param, json.loads(found.stdout)


def count(case, *prefixes):
    """Return how many instructions of a case begin so."""
    return sum(number for name, number in case["instructions"].items() if name.startswith(prefixes))


def test_no_register_is_spilled_to_memory(compiled):
    _, cases = compiled
    assert {name for name, case in cases.items() if count(case, "STL", "LDL")} == set()


def test_a_tile_fits_in_shared_memory_and_three_decodes_fit_on_a_multiprocessor(compiled):
    capability, cases = compiled
    assert max(case["shared"] for case in cases.values()) <= SHARED_MEMORY[capability] * 1024
    assert 3 * (cases["decode"]["shared"] + 1024) <= 227 * 1024


def test_keys_and_values_are_loaded_asynchronously_16_bytes_a_thread(compiled):
    _, cases = compiled
    for name, case in cases.items():
        if name.startswith(("decode", "prefill")):
            assert count(case, "LDGSTS.E.BYPASS.128") > 0, name
    for name in ("decode", "decode, block 64", "decode, everything", "prefill"):
        assert count(cases[name], "LDGSTS") == count(cases[name], "LDGSTS.E.BYPASS.128"), name


def test_two_tiles_are_in_flight_while_one_is_computed(compiled):
    """The ids of the next tile's blocks are loaded ahead, without which the pipeliner keeps one buffer only."""
    _, cases = compiled
    tile_of_keys_and_values = 2 * 64 * 128 * 2
    assert cases["decode"]["shared"] > 2 * tile_of_keys_and_values


def test_prompts_use_the_large_tensor_core_instructions(compiled):
    capability, cases = compiled
    instruction = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}[capability]
    assert count(cases["prefill"], instruction) > 0


def test_new_keys_are_read_and_written_16_bytes_a_thread(compiled):
    _, cases = compiled
    assert count(cases["write"], "LDG.E.128") == count(cases["write"], "STG.E.128") == 2
    assert count(cases["write"], "STG") == 2
