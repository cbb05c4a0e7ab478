"""lab-09: a result of NaN is told what causes it, and only that."""

from pathlib import Path

import pytest

from mini_kv.course.labkit.audit import run_text
from mini_kv.course.labkit.failure import parts_of
from mini_kv.course.labkit.lab import load_lab

pytest.importorskip("torch")
LAB = load_lab(Path(__file__).parents[3] / "labs" / "lab-09")
SOLUTION = (LAB.solutions / "solution.py").read_text(encoding="utf-8")
ATTENTION = """

def paged_attention_ref(q, k_cache, v_cache, block_table, seq_lens, scale):
    block_size, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
    for s, seq_len in enumerate(seq_lens.tolist()):
        if seq_len == 0:
            continue
        row = block_table[s]{own_blocks}
        k, v = (cache[row].flatten(0, 1).repeat_interleave(group, dim=1) for cache in (k_cache, v_cache))
        scores = torch.einsum("hd,nhd->hn", q[s], k) * scale
        place = torch.arange(len(k))
        is_key = place < seq_len
        is_unused = ~is_key & (place < -(-seq_len // block_size) * block_size)
        powers = {powers}
        total = powers.sum(dim=1)
        out[s] = torch.einsum("hn,nhd->hd", powers, v) / total.unsqueeze(-1)
        lse[s] = torch.log(total)
    return out, lse
"""
OWN_BLOCKS = "[: -(-seq_len // block_size)]"


@pytest.mark.parametrize(
    ("own_blocks", "powers", "why"),
    [
        (
            "",
            "torch.exp(scores.masked_fill(~is_key, -torch.inf))",
            "a block of no request is read: with 5 or 7 in it nothing changes, but 0 times NaN is NaN",
        ),
        (
            "",
            "torch.softmax(scores.masked_fill(is_unused, -torch.inf), dim=1)",
            "a block of no request is read: with 5 and with 7 in it there are two results, with NaN it is NaN",
        ),
        (
            OWN_BLOCKS,
            "torch.exp(scores - scores.amax(dim=1, keepdim=True)) * is_key",
            "unused slots are read: with 0 in them it is not NaN. Ask: are they in the maximum? Then each power is 0",
        ),
        (
            OWN_BLOCKS,
            "torch.exp(scores.masked_fill(~is_key, -torch.inf) - 1e9)",
            "other numbers in blocks of no request and in unused slots do not help. Ask: is 0 divided by 0 somewhere?",
        ),
    ],
    ids=["weight 0 on others' blocks", "weight on others' blocks", "maximum over unused slots", "0 / 0 of its own"],
)
def test_nan_is_told_what_causes_it(own_blocks: str, powers: str, why: str) -> None:
    code = ATTENTION.format(own_blocks=own_blocks, powers=powers)
    results = run_text(LAB, "wrong", SOLUTION + code)
    first = next(result.message for result in results if "\n   got       [nan" in result.message)
    lines = [line for part, lines in parts_of(first).items() if part == "why" for line in lines]
    assert " ".join(" ".join(lines).split()) == f"why: {why}"
