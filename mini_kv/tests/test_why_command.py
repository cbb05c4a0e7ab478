"""`mini-kv why`: the block that a model gets, which layer makes it so long, and what prompts find at best."""

import json
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.dev.recorders.planning import planning_rows
from mini_kv.tools.traces.commands.why_command import PAGE, more

CONFIGS = {row["name"]: row["config"] for row in planning_rows()}


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["Qwen3.5-4B"]), encoding="utf-8")
    return str(path)


def test_a_state_makes_the_blocks_long_and_the_answer_says_how(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The model, the kernel and the prompt lengths of vllm#40696: no prompt below 528 tokens found anything.

    What else is said is said of the model by its name, too: see test_planning_readme.
    """
    prompts = ["--prompt-tokens", "480", "552", "979"]
    assert main(["why", "qwen-3.5-4b", "--gpu", "a100", *prompts]) == 0
    by_name = capsys.readouterr().out
    assert main(["why", qwen, "--gdn-prefill-backend", "triton", *prompts]) == 0
    out = capsys.readouterr().out
    assert out == by_name.replace("Qwen3.5 4B: hits", "qwen3_5_text: hits")
    assert out.splitlines()[8].split() == ["552", "528", "0", "528"]


def test_compressed_layers_have_blocks_of_several_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "deepseek-v4-flash", "--prompt-tokens", "1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "DeepSeek-V4-Flash: hits end at multiples of 256 tokens.",
        "16 tokens per block are the default. The groups have blocks of 4, 8, 64 and 256, as the kernels of compressed"
        " layers require.",
        "A prefix that requests share is found from 256 tokens on.",
    ]
    assert lines[6].split() == ["1,000", "768", "0", "768"]


def test_latent_vectors_beside_states_have_blocks_of_whole_128_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "kimi-linear-48b-a3b"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "16 tokens per block are the default. But 20 of 27 layers keep a state of 2,170,880 bytes, which must fit into"
        " a block. Attention keeps 1,152 bytes per token: 1,885 tokens.",
        "Rounded up to a multiple of 128, as kernels that read latent vectors require: 1,920.",
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], " The kernels of sparse attention read whole blocks of 64."),
        (["--block-size", "64"], ""),
    ],
)
def test_sparse_layers_and_their_indexers_share_blocks_of_64(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "deepseek-v3.2", *options]) == 0
    assert capsys.readouterr().out.splitlines()[:-2] == [
        "DeepSeek-V3.2: hits end at multiples of 64 tokens.",
        f"Its blocks have 64 tokens.{why} Its layers keep different amounts per token, but need equally many blocks,"
        " so one table serves them all.",
        "A prefix that requests share is found from 64 tokens on.",
        "The same prompt again is found from 65 tokens on, since its last token is always computed.",
    ]


def test_on_hopper_the_kernel_rounds_the_block_up_and_a_flag_would_help(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", qwen]) == 0
    out = capsys.readouterr().out
    assert "Rounded up to a multiple of 64, where the prefill's kernel can export a state: 576." in out
    assert "--gdn-prefill-backend triton   hits at multiples of 528 tokens, from 528 on" in out


def test_drafts_take_the_last_block_off_a_hit(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gdn-prefill-backend", "triton", "--num-speculative-tokens", "3"]
    assert main(["why", qwen, *arguments, "--prompt-tokens", "1000", "2000", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "model": "qwen3_5_text",
        "hit_alignment_tokens": 544,
        "block_sizes": [544, 544, 544, 544],
        "shortest_prompt_tokens": 1089,
        "prompts": [
            {"tokens": 1000, "same_prompt": 0, "second_to_share": 0, "third_to_share": 0},
            {"tokens": 2000, "same_prompt": 1088, "second_to_share": 0, "third_to_share": 1088},
        ],
    }


def test_layers_of_different_sizes_have_blocks_of_different_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["gemma-4-26B-A4B"]), encoding="utf-8")
    assert main(["why", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gemma4_text: hits end at multiples of 32 tokens."
    assert lines[1].startswith("16 tokens per block are the default. The groups have blocks of 16 and 32: ")


def test_plain_attention_needs_no_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "llama-3-8b", "--prompt-tokens", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "Llama 3 8B: hits end at multiples of 16 tokens.",
        "Its blocks have 16 tokens: all layers keep equally many bytes per token.",
        "A prefix that requests share is found from 16 tokens on.",
        "The same prompt again is found from 17 tokens on, since its last token is always computed.",
    ]
    assert lines[6].split() == ["100", "96", "96", "96"]
    assert lines[-3] == "  If a server finds nothing at a length with a number here, the block size is not the reason."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["llama-3-8b", "--prompt-tokens", "0"], "--prompt-tokens is 0, it must be from 1 to 10,000,000"),
        (["llama-3-8b", "--tensor-parallel-size", "3"], "full.0 has 8 KV heads: 3 cards cannot share them evenly"),
        (["no-such"], "unknown model 'no-such'; choose from"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("mini-kv why: ") and says in told and told.count("\n") == 1


def test_states_alone_are_not_cached_by_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["Mamba-Codestral-7B-v0.1"]), encoding="utf-8")
    assert main(["why", str(path)]) == 2
    assert "mamba2 has states alone, and vLLM caches no prefixes of such a model" in capsys.readouterr().err


def test_a_prefix_of_one_block_is_too_short_with_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpu", "a100", "--num-speculative-tokens", "3", "--prompt-tokens", "979", "1088"]
    assert main(["why", "qwen-3.5-4b", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[7:9]] == [
        ["979", "0", "0", "0", "shorter", "than", "two", "blocks"],
        ["1,088", "0", "0", "544"],
    ]


def test_kept_windows_help_the_second_request(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM keeps windows where prompts part. Only the third request finds them, unless they are kept at intervals."""
    assert main(["why", "gemma-3-27b", "--prompt-tokens", "4000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[6].split() == ["4,000", "3,984", "0", "4,000"]
    assert [line.strip() for line in lines[-5:-2]] == [
        "What would help:",
        "--prefix-cache-retention-interval 512",
        "of 4,000 tokens the second request finds 4,000, for more memory",
    ]


def test_the_answer_ends_with_the_page_on_other_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its file, or by its address if the course has one. Without the book there is no such line."""
    assert main(["why", "llama-3-8b"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["", f"Other causes of a hit rate of zero: {PAGE}"]
    assert more(tmp_path) == []
    page, course = tmp_path / PAGE, tmp_path / "book/course.toml"
    page.parent.mkdir(parents=True)
    page.write_text("# Why?\n", encoding="utf-8")
    assert more(tmp_path) == ["", f"Other causes of a hit rate of zero: {PAGE}"]
    for site in ("https://kv.example.edu/course", "https://kv.example.edu/course/"):
        course.write_text(f'name = "mini_kv"\nsite = "{site}" # of the book\n', encoding="utf-8")
        address = "https://kv.example.edu/course/answers/hit-rate-is-zero/"
        assert more(tmp_path) == ["", f"Other causes of a hit rate of zero: {address}"]
