"""The driver's worth: each plausible bug, put into a copy of the core, is found by random operations.

A mutant is one exact replacement. Where the core's text has changed, the test says so: bring the mutant up to date, or
drop it with its idea.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from mini_kv.course.verify.compare import Verdict, play, recorded_scenarios
from mini_kv.course.verify.program import Piped
from mini_kv.tests.tree import drawn

PACKAGE = Path(__file__).parents[1]
COPIED = ("__init__.py", "tests/reference.py", "tests/pairwise.py", "tests/random_driver.py")


class Mutant(NamedTuple):
    """A wrong version of one file of the core."""

    idea: str
    file: str
    old: str
    new: str


POOL, QUEUE, HASH = "block_pool.py", "free_queue.py", "block_hash.py"
GROUP, GROUPS, MANAGER = "single_type_kv_cache_manager.py", "kv_cache_coordinator.py", "kv_cache_manager.py"
STATES, LARGE_BLOCKS, CHECKS = "mamba_manager.py", "block_hash_list.py", "checks.py"

MUTANTS = (
    Mutant(
        "touch without dequeue", POOL, "                self.free_block_queue.remove(block)\n", "                pass\n"
    ),
    Mutant(
        "key kept on reuse", POOL, "                self._maybe_evict_cached_block(block)\n", "                pass\n"
    ),
    Mutant(
        "entry kept on reuse",
        POOL,
        "        self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)\n",
        "",
    ),
    Mutant("keyless blocks to the back", POOL, "queue.prepend_n(without_hash)", "queue.append_n(without_hash)"),
    Mutant("keyed blocks to the front", POOL, "queue.append_n(with_hash)", "queue.prepend_n(with_hash)"),
    Mutant(
        "eviction pops the oldest duplicate", POOL, "found.pop(block_id, None)", "found.pop(next(iter(found)), None)"
    ),
    Mutant(
        "duplicate replaces the first",
        POOL,
        "{found.block_id: found, block.block_id: block}",
        "block",
    ),
    Mutant(
        "newest duplicate answers",
        POOL,
        "return next(iter(found.values())) if isinstance",
        "return list(found.values())[-1] if isinstance",
    ),
    Mutant("reset while blocks are held", POOL, "if self.num_free_blocks != len(self.blocks) - 1:", "if False:"),
    Mutant(
        "double free silenced",
        POOL,
        'raise BlockStateError(f"block {block.block_id} is freed, but no table holds it", [block.block_id])',
        "return",
    ),
    Mutant("link back forgotten", QUEUE, "        after.prev_free_block = before\n        block.", "        block."),
    Mutant(
        "too many take what there is",
        QUEUE,
        "            raise OutOfBlocksError(requested=n, free=self.num_free_blocks)\n",
        "            n = self.num_free_blocks\n",
    ),
    Mutant("head freed before the tail", GROUP, "free_blocks(reversed(table))", "free_blocks(table)"),
    Mutant(
        "revived hits not charged",
        GROUP,
        "held + len(new_computed_blocks))\n        return max(num_new, 0) + num_blocks_to_revive(new_computed_blocks)",
        "held + len(new_computed_blocks))\n        return max(num_new, 0)",
    ),
    Mutant("shared hits charged", GROUP, "block.ref_cnt == 0 and not block.is_null", "not block.is_null"),
    Mutant(
        "partial block published", GROUP, "min(num_tokens // self.block_size,", "min(cdiv(num_tokens, self.block_size),"
    ),
    Mutant("window a token too short", GROUP, "- self.sliding_window + 1)", "- self.sliding_window + 2)"),
    Mutant("window a token too long", GROUP, "- self.sliding_window + 1)", "- self.sliding_window)"),
    Mutant("slides head first", GROUP, "in reversed(table[start:end])", "in table[start:end]"),
    Mutant("nulls withdrawn too", GROUP, "[first:num_cached] if not block.is_null]", "[first:num_cached]]"),
    Mutant("state within a block published", STATES, "if end % self.cache_hit_alignment_tokens == 0:", "if True:"),
    Mutant(
        "states passed by published",
        STATES,
        "        self.num_cached_block[request.request_id] = position  #",
        "        _ = position  #",
    ),
    Mutant("promised state adopted", STATES, "if is_hit and writer", "if False and writer"),
    Mutant(
        "window looked up in group 0",
        GROUP,
        "block_hashes[position], self.kv_cache_group_id)",
        "block_hashes[position], 0)",
    ),
    Mutant("miss forgets the end", GROUP, "(position - num_dropped) // step * step", "position - num_dropped"),
    Mutant("shortest answer not asked again", GROUPS, "if num_agreed == len(", "if len(hits) == len("),
    Mutant("shared blocks counted as given back", GROUPS, "block.ref_cnt == 1\n", "block.ref_cnt > 0\n"),
    Mutant(
        "what slides does not count", MANAGER, "num_needed -= self.coordinator", "num_needed -= 0 * self.coordinator"
    ),
    Mutant(
        "slides although refused",
        MANAGER,
        "        num_needed += len(shared) + reserved_blocks\n",
        "        self.coordinator.remove_skipped_blocks(request.request_id, total_computed_tokens)\n",
    ),
    Mutant(
        "large block by its first part",
        LARGE_BLOCKS,
        "* self.scale_factor + self.scale_factor - 1]",
        "* self.scale_factor]",
    ),
    Mutant(
        "hit goes on after a miss",
        GROUP,
        "            if found is None:\n                break\n",
        "            if found is None:\n                continue\n",
    ),
    Mutant(
        "withdraw forgets the keys",
        GROUP,
        "        self.block_pool.evict_blocks(block.block_id for block in promised)\n",
        "",
    ),
    Mutant(
        "withdraw spares the half-computed block",
        GROUP,
        "first = num_computed_tokens // self.block_size",
        "first = cdiv(num_computed_tokens, self.block_size)",
    ),
    Mutant("dependants forgotten", MANAGER, "if request_id != request.request_id\n", "if False\n"),
    Mutant(
        "no cap", MANAGER, "request.block_hashes, request.num_tokens - 1)", "request.block_hashes, request.num_tokens)"
    ),
    Mutant(
        "lookahead cached",
        MANAGER,
        "min(total_computed_tokens + num_new_tokens, request.num_tokens)",
        "min(num_slots_wanted, request.num_tokens)",
    ),
    Mutant("last free block never given", MANAGER, "if num_needed > self", "if num_needed >= self"),
    Mutant(
        "refusal leaks references",
        MANAGER,
        "num_free_blocks:\n            return None  # too few blocks\n",
        "num_free_blocks:\n            self.block_pool.touch(hit[0])\n            return None\n",
    ),
    Mutant(
        "new blocks before the hit is touched",
        MANAGER,
        "            self._admit(request, total_computed_tokens, hit)\n",
        "            early = self.block_pool.get_new_blocks(num_needed - sum(b.ref_cnt == 0 for b in hit[0]))\n"
        "            self._admit(request, total_computed_tokens, hit)\n"
        "            self.block_pool.free_blocks(early)\n",
    ),
    Mutant("stale hit accepted", CHECKS, "if block.block_hash is None or block.block_hash != key:", "if False:"),
    Mutant(
        "namesake accepted", CHECKS, ".get(request.request_id) is not request:", ".get(request.request_id) is None:"
    ),
    Mutant("readmission counted again", MANAGER, "if request.num_cached_tokens is None:", "if True:"),
    Mutant("root without salt", HASH, "[] if cache_salt is None else", "[] if True else"),
    Mutant("salt by its length", HASH, '[("cache_salt", cache_salt)]', '[("cache_salt", len(cache_salt))]'),
    Mutant("adapter by its name alone", HASH, "lora_name, request.lora_request.lora_path)", "lora_name)"),
    Mutant("image without its place", HASH, "feature.identifier, feature.offset - start)", "feature.identifier)"),
    Mutant(
        "block without its parent",
        HASH,
        "            parent = hash_function(parent +",
        "            parent = hash_function(b'' +",
    ),
)


AS_VLLM_DOES = {
    "slides although refused",
    "withdraw forgets the keys",
    "withdraw spares the half-computed block",
    "stale hit accepted",
    "namesake accepted",
}
"""Mutants that do what vLLM does, where mini_kv differs from it on purpose. The recorded scenarios allow both."""
OUT_OF_REACH = {
    "too many take what there is": "the manager never asks the pool for more than is free",
    "nulls withdrawn too": "vLLM withdraws no promises, so no recorded scenario with a window does",
    "states passed by published": "it shows in a scenario in which mini_kv differs from vLLM on purpose",
    "dependants forgotten": "vLLM withdraws no promises, so it names no requests that depend on them",
}
"""Mutants that the recorded scenarios do not find, with the reason."""


def played() -> list[Mutant]:
    """Return the mutants to play the recorded scenarios on: those that a scenario ends, and a quarter of the others.

    The others cost 10 s of CPU each, because all scenarios are played. `MINI_KV_LONG` plays them all.
    """
    others = {*AS_VLLM_DOES, *OUT_OF_REACH}
    is_long = bool(os.environ.get("MINI_KV_LONG"))
    return [mutant for mutant in MUTANTS if mutant.idea not in others or is_long or drawn(mutant.idea, 4) == 0]


def copy_with(mutant: Mutant, folder: Path, packages: Sequence[str], files: Sequence[str]) -> None:
    """Put these parts of mini_kv into a folder, and the mutant into its core."""
    for name in packages:
        shutil.copytree(PACKAGE / name, folder / "mini_kv" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in files:
        (folder / "mini_kv" / name).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / name, folder / "mini_kv" / name)
    path = folder / "mini_kv" / "core" / mutant.file
    source = path.read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, f"this text is not (once) in core/{mutant.file} any more:\n{mutant.old}"
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")


@pytest.mark.audit
@pytest.mark.parametrize("mutant", played(), ids=lambda mutant: mutant.idea.replace(" ", "-"))
def test_the_recorded_scenarios_find_it_through_a_pipe(mutant: Mutant, tmp_path: Path) -> None:
    """As another engine's author would: `mini-kv verify` on a program."""
    copy_with(mutant, tmp_path, ("core", "course/verify"), ("__init__.py",))
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    start = (
        f"{path}; import runpy; runpy.run_module('mini_kv.course.verify.adapters.mini_kv_engine', run_name='__main__')"
    )
    with Piped([sys.executable, "-B", "-P", "-c", start]) as program:
        verdicts = (play(recorded, program).verdict for recorded in recorded_scenarios())
        found = Verdict.DIFFERS in verdicts
    assert found == (mutant.idea not in {*AS_VLLM_DOES, *OUT_OF_REACH})


@pytest.mark.audit  # it tests the driver, not the engine
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.idea.replace(" ", "-") for mutant in MUTANTS])
def test_the_driver_finds(mutant: Mutant, tmp_path: Path) -> None:
    """Within 100,000 operations over the caches of the driver's own test; in fact within a few thousand."""
    copy_with(mutant, tmp_path, ("core", "course/verify"), COPIED)

    run = subprocess.run(
        [sys.executable, "-B", "-m", "mini_kv.tests.random_driver", "--all", "--shrink-s", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.startswith("seed "), run.stdout + run.stderr  # the driver's report, not a crash
    print(run.stdout.splitlines()[0])
