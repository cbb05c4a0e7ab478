"""lab-04's `fast_hash.py`: two blocks with one xxh3 hash, what a cache makes of them, and where the engine refuses."""

import shutil
from pathlib import Path

import pytest

from mini_kv.core import block_hash
from mini_kv.core.block import BlockHash
from mini_kv.core.block_hash import HashFunction, hash_block_tokens, sha256, xxh3_128
from mini_kv.core.request import Request
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.lab import load_lab

LAB = Path(__file__).resolve().parents[3] / "labs" / "lab-04"
fast_hash = load_file(LAB / "fast_hash.py")
ROOTS = [b"root", b"another", b"a third"]


def hashes_after(root: bytes, function: HashFunction, blocks: list[list[int]]) -> set[BlockHash]:
    """Return the different hashes of these blocks after one parent."""
    parent = BlockHash(function(root))
    return {hash_block_tokens(function, parent, block) for block in blocks}


def test_p_and_q_share_64_bits_after_any_parent():
    """They differ in their last token, and SHA-256 tells them apart."""
    p, q = fast_hash.P, fast_hash.Q
    assert (p[:3], p[3], q[3]) == (q[:3], 1, 2)
    for function, num_hashes in ((fast_hash.xxh3_64, 1), (sha256, 2)):
        found = [hashes_after(root, function, [p, q]) for root in ROOTS]
        assert [len(hashes) for hashes in found] == [num_hashes] * 3
        assert len(set.union(*found)) == 3 * num_hashes


def test_one_pair_shares_128_bits():
    """The engine's own xxh3_128 has twice the width, and a pair is as easily made."""
    p, q = fast_hash.WIDE_P, fast_hash.WIDE_Q
    assert [index for index in range(32) if p[index] != q[index]] == [6, 14]
    for function, num_hashes in ((xxh3_128, 1), (sha256, 2)):
        found = [hashes_after(root, function, [p, q]) for root in ROOTS]
        assert [len(hashes) for hashes in found] == [num_hashes] * 3


def test_the_forecast_is_what_the_cache_does():
    """The prediction of lab.toml: 8 tokens of Q's are hit, though 4 of them follow another block."""
    answers = {question.id: question.answer for question in load_lab(LAB).predictions}
    taken = {name: fast_hash.tokens_taken_of_q(block_hash, getattr(fast_hash, name)) for name in ("xxh3_64", "sha256")}
    assert taken == {"xxh3_64": int(answers["sixty-four-bits"]), "sha256": 0} == {"xxh3_64": 8, "sha256": 0}
    assert [fast_hash.tokens_taken_of_wide_q(name) for name in ("xxh3_128", "sha256")] == [32, 0]


def test_where_the_engine_refuses():
    """No setting takes 64 bits; 128 are refused as soon as there are tenants."""
    assert fast_hash.refusals() == [
        ('hash_name="xxh3_64"', "unknown hash function 'xxh3_64'; choose from ['sha256', 'xxh3_128']"),
        (
            'hash_name="xxh3_128" and a request with a cache_salt',
            "xxh3_128 is for a single tenant: with a cache_salt, use sha256",
        ),
    ]


def test_the_speeds_are_of_all_tokens():
    """The code measured hashes each full block of the prompt: 100 tokens in blocks of 16 are 6 blocks."""
    seen = []

    def counting(data: bytes) -> bytes:
        seen.append(len(data))
        return sha256(data)

    assert min(fast_hash.speeds(block_hash, counting, 100)) > 0
    blocks = [size for size in seen if size == 32 + 4 + 4 * 16]
    assert len(blocks) == 7 * 6 + 7 * 6
    assert len(Request("A", range(100)).block_hashes) == 0


def test_without_xxhash_the_rest_is_shown(capsys: pytest.CaptureFixture[str]):
    """SHA-256 is measured, and the report says what is missing and how to get it."""
    fast_hash.report(block_hash, {"sha256": sha256}, num_tokens=64)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1. A prompt of 64 tokens, blocks of 16, millions of tokens per second"
    assert [line.split()[0] for line in lines if line.startswith("   sha256")] == ["sha256"] * 3
    assert "   xxh3_64   not shown, it needs the package xxhash: pip install xxhash" in lines
    assert "one hash" not in "\n".join(lines)


def test_an_untouched_starter_says_what_is_missing(tmp_path: Path):
    """No traceback: the line that the tests show."""
    starter = LAB.parents[1] / "mini_kv" / "course" / "labkit" / "starters" / "lab-04.txt"
    shutil.copy(starter, tmp_path / "starter.py")
    with pytest.raises(SystemExit, match="still to be written: lab-04 get_request_block_hasher: "):
        fast_hash.main([str(tmp_path / "starter.py")])
