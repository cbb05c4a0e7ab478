"""The layers of a drafter take memory, too. Their plans are vLLM's: see test_golden_planning.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main

EAGLE = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 8}


def plan(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Return the figures and the line about the drafter."""
    assert main(["plan", *words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert main(["plan", *words]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("drafter ")]
    return figures, "\n".join(lines)


def test_a_models_own_layer_for_drafts_is_counted_when_it_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    """Eleven layers of attention in a block, not ten: a tenth fewer blocks."""
    memory = ("qwen-3.5-35b-a3b", "--memory", "640", "--max-num-batched-tokens", "2048")
    without, line = plan(*memory, capsys=capsys)
    assert (without["num_blocks"], without["drafter_layers"], line) == (30_840, 0, "")
    with_it, line = plan(*memory, "--num-speculative-tokens", "1", capsys=capsys)
    assert (with_it["num_blocks"], with_it["drafter_layers"]) == (28_036, 1)
    assert line == "drafter      1 of the model's own layers is counted for it"
    elsewhere, line = plan(*memory, "--num-speculative-tokens", "1", "--drafter", "none", capsys=capsys)
    assert (elsewhere["num_blocks"], elsewhere["drafter_layers"], line) == (30_840, 0, "")


def test_another_drafter_is_counted_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One layer beside twelve of each kind: 13 with all tokens, and 12 with a window and an empty place."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(EAGLE | {"hidden_size": 2880, "head_dim": 64}), encoding="utf-8")
    figures, line = plan("gpt-oss-20b", "--num-speculative-tokens", "3", "--drafter", str(file), capsys=capsys)
    assert sorted(len(group["layers"]) for group in figures["groups"]) == [12, 13]
    assert figures["drafter_layers"] == 1
    assert line == f"drafter      the layers of {file} are counted"


def test_a_drafter_that_is_not_counted_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = plan("llama-3-8b", "--num-speculative-tokens", "2", capsys=capsys)
    assert line == "drafter      not counted: give its config.json with --drafter, or none if it keeps no KV"


def test_a_drafter_without_drafts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3-8b", "--drafter", "none"]) == 2
    assert capsys.readouterr().err == (
        "mini-kv plan: --drafter needs --num-speculative-tokens: without drafts nothing drafts\n"
    )
    assert main(["plan", "llama-3-8b", "--num-speculative-tokens", "1", "--drafter", "no.json"]) == 2
    assert "no.json" in capsys.readouterr().err
    assert main(["why", "llama-3-8b", "--drafter", "none"]) == 2


def test_states_alone_take_a_block_per_request_however_long_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file says no length, so 2,048 tokens are planned for. Longer and shorter requests keep one state, too."""
    sizes = {"num_hidden_layers": 64, "hidden_size": 4096, "intermediate_size": 8192, "state_size": 16}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "falcon_mamba", "conv_kernel": 4, **sizes}), encoding="utf-8")
    told = {}
    for length in (100, 2048, 9000):
        assert main(["plan", str(file), "--memory", "4", "--max-len", str(length), "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        told[length] = (figures["blocks_per_request"], figures["concurrency"], figures["groups"][0]["block_size"])
    assert told == {length: (1, 214.0, length) for length in (100, 2048, 9000)}


def test_states_limit_the_requests_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A short request holds one block of attention, and in each of three groups of states one and one per draft."""
    told = {}
    for drafts in ("0", "3"):
        words = ["qwen-3.5-4b", "--gpu", "rtx-4090", "--num-speculative-tokens", drafts]
        assert main(["plan", *words, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        told[drafts] = (figures["num_blocks"], figures["max_num_seqs"])
    assert told == {"0": (813, 812 // 4), "3": (702, 701 // 13)}
    assert main(["plan", "llama-3-8b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_num_seqs"] is None
