"""The Python that answers the page "Will it fit?": the same sentences and figures as the two commands.

Its sentences are snapshots. After one has been reworded: make snapshots ARGS=mini_kv/tests/test_plan_page.py
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from mini_kv_book.assets import plan_page

from mini_kv.cli import main
from mini_kv.tests.test_config_json import PUBLIC
from mini_kv.tools.planning.models import model_names

CASE = {"model": "qwen-3.5-4b", "gpu": "a100", "max-len": "32768", "prompt-tokens": "480"}


def answer(**fields: str) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(plan_page.answer(json.dumps(fields)))
    return answered


def test_a_prefix_shorter_than_a_block_is_told_from_a_broken_cache() -> None:
    """vllm#40696: blocks of 528 tokens, 480 shared."""
    told = answer(**CASE)
    assert told["plan"]["fits"] == snapshot("Room for 54 requests of 32,768 tokens on one A100.")
    assert told["why"]["verdict"] == snapshot(
        "480 shared tokens are shorter than a block of 528: nothing can be found."
    )
    assert told["why"]["helps"] == snapshot(
        [
            "--prefix-match-unit N: hits at multiples of N, which must divide 528"
            " (from vLLM's documentation: mini_kv does not model it)"
        ]
    )


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"prompt-tokens": "528"}, snapshot("Of 528 shared tokens, the third request finds all of them.")),
        (
            {"prompt-tokens": "979"},
            snapshot("Of 979 shared tokens, the third request finds 528 and computes the other 451 again."),
        ),
        (
            {"prompt-tokens": "979", "num-speculative-tokens": "3"},
            snapshot(
                "979 shared tokens are shorter than two blocks of 544, and a hit drops one: nothing can be found."
            ),
        ),
        (
            {"prompt-tokens": "480", "model": "llama-3-8b"},
            snapshot("Of 480 shared tokens, the second request finds all of them."),
        ),
        ({"prompt-tokens": ""}, ""),
    ],
)
def test_what_requests_find_is_said_in_a_sentence(fields: dict[str, str], verdict: str) -> None:
    assert answer(**CASE | fields)["why"]["verdict"] == verdict


def test_a_flag_is_named_that_helps_the_second_request() -> None:
    assert answer(model="gemma-3-27b", **{"prompt-tokens": "4000"})["why"]["helps"] == snapshot(
        ["--prefix-cache-retention-interval 512: of 4,000 tokens the second request finds 4,000, for more memory"]
    )


@pytest.mark.parametrize("model", model_names())
def test_the_commands_shown_print_what_the_page_says(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(**CASE | {"model": model, "gpu": "b200", "tensor-parallel-size": "8"})
    for verb in ("plan", "why"):
        assert main(shlex.split(told[verb]["command"])[1:]) == (2 if "error" in told[verb] else 0)
        captured = capsys.readouterr()
        said = [f"mini-kv {verb}: {told[verb]['error']}"] if "error" in told[verb] else []
        assert captured.err.splitlines() == said
        if not said:
            said = [told["plan"]["fits"]] if verb == "plan" else told["why"]["said"]
        assert set(said) <= set((captured.out + captured.err).splitlines())


def test_each_layer_is_drawn_in_its_group_and_fills_its_part_of_a_block() -> None:
    """A state of 2,146,304 bytes in 2,162,688; attention fills all of it."""
    plan = answer(**CASE)["plan"]
    assert [layer["kind"] for layer in plan["layers"]] == ["state", "state", "state", "full"] * 8
    assert [layer["group"] for layer in plan["layers"]] == [0, 1, 2, 3] * 8
    assert {layer["filled"] for layer in plan["layers"]} == {2_146_304 / 2_162_688, 1.0}
    assert [(group["layers"], group["holds"]) for group in plan["groups"]] == [
        *[(8, "one state of 2,146,304 bytes")] * 3,
        (8, "528 tokens of 4,096 bytes"),
    ]


def test_sparse_layers_share_a_table_and_have_pages_of_their_own() -> None:
    """64 tokens of 1,152 bytes beside 64 of 132."""
    plan = answer(model="deepseek-v3.2", gpu="h200", **{"tensor-parallel-size": "8"})["plan"]
    assert [(row["number"], row["layers"], row["keeps"], row["holds"]) for row in plan["groups"]] == [
        (0, 61, "latent vectors", "64 tokens of 1,152 bytes"),
        (0, 61, "indexer keys", "64 tokens of 132 bytes"),
    ]
    assert [layer["page"] for layer in plan["layers"]] == [1.0, 132 / 1152] * 61
    assert {(layer["kind"], layer["filled"]) for layer in plan["layers"]} == {("full", 1.0)}
    assert plan["caption"] == snapshot(
        "Each column is what a layer keeps, as high as its page of a block. One block table serves them all."
    )
    assert plan["speed"].startswith("no bound is known: sparse layers read some of the tokens")
    plan = answer(model="deepseek-v4-flash", memory="60")["plan"]
    assert plan["caption"] == snapshot(
        "Each column is what a layer keeps, as high as its page of a block. Columns of one letter share a block table."
    )
    assert [row["holds"] for row in plan["groups"] if row["number"] == 2] == [
        "256 tokens of 33.75 bytes",
        "256 tokens of 146.25 bytes",
        "256 tokens of 6.75 bytes",
    ]


def test_a_config_that_was_pasted_is_read_like_a_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = answer(config='{"model_type": "llama", "num_hidden_layers": 2}', memory="1")
    assert told["plan"]["command"] == "mini-kv plan config.json --memory 1"
    assert told["plan"]["fits"] == snapshot("Room for 15 requests of 2,048 tokens in 1 GiB.")
    told = answer(config='{"model_type": "llama", "sparse_blocks": 3}')
    assert told["plan"]["error"] == told["why"]["error"]
    assert told["plan"]["error"].startswith("config.json: it has sparse_blocks, which plan does not model yet")
    assert answer(config="{")["plan"]["error"].startswith("config.json: is not JSON: ")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Llama 3.1 8B",
            snapshot(
                [
                    "Room for 3 requests of 131,072 tokens on one H100.",
                    "16.1 GB, counted from the config at 2 bytes per parameter",
                ]
            ),
        ),
        (
            "Gemma 3 27B",
            snapshot(
                [
                    "Room for 1 request of 131,072 tokens on one H100.",
                    "54.0 GB, counted from the config at 2 bytes per parameter, without those of vision_config",
                ]
            ),
        ),
        (
            "gpt-oss 20b",
            snapshot(
                [
                    "The room on one H100 is not known, because the weights cannot be counted: config.json: plan does"
                    " not count the weights of model_type 'gpt_oss'.",
                    "",
                ]
            ),
        ),
    ],
)
def test_a_config_alone_says_its_weights_or_why_not(
    name: str, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers are drawn in any case. A page has no folder in which an index could be."""
    monkeypatch.chdir(tmp_path)
    (config,) = [row["config"] for row in PUBLIC["everyday"] if row["name"] == name]
    plan = answer(config=json.dumps(config), gpu="h100")["plan"]
    assert [plan["fits"], plan["parameters"]] == says
    assert plan["known"] is (name != "gpt-oss 20b")
    assert len(plan["layers"]) == (config.get("text_config") or config)["num_hidden_layers"]


@pytest.mark.parametrize(
    ("fields", "verb", "said"),
    [
        ({"max-len": "many"}, "plan", "argument --max-len/--max-model-len: invalid int value: 'many'"),
        ({"max-len": "8192 2"}, "plan", "unrecognized arguments: 2"),
        ({"prompt-tokens": "10000001"}, "why", "--prompt-tokens is 10000001, it must be from 1 to 10,000,000"),
        ({"model": "no-such"}, "why", "unknown model 'no-such'; choose from llama-3-8b, "),
        ({"gpu": "l4", "model": "gemma-3-27b"}, "plan", "the weights have 54.0 GB, and 22.1 GB of one L4 may be used:"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(fields: dict[str, str], verb: str, said: str) -> None:
    assert answer(**CASE | fields)[verb]["error"].startswith(said)
