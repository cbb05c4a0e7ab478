"""`mini-kv curve`: what it prints, what it writes, and what it refuses."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mini_kv.cli import main
from mini_kv.tools import traces

SMALL = str(Path(traces.__file__).with_name("small.jsonl"))


def test_the_answer_in_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    """The plot, then what no pool can find, where it bends, what is mine, and what a tenth more would buy."""
    assert main(["curve", SMALL, "--num-blocks", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == " 66.2 % |" + " " * 55 + "#########"
    assert lines[14:] == [
        "",
        "200 requests, 1,031,342 prompt tokens, blocks of 512 tokens, one request at a time.",
        "No pool finds more than 66.18 % of the prompt tokens, and 187 blocks are enough for that.",
        "The knee: 67 blocks find 45.28 % of the prompt tokens. Up to there one more block finds more hits than an "
        "average block does, beyond it fewer.",
        "A pool of fewer than 35 blocks refuses the longest prompt.",
        "Yours: 100 blocks find 52.37 % of the prompt tokens.",
        "10 blocks more would find 31,232 tokens more: 55.40 % of the prompt tokens.",
    ]


def test_with_a_model_memory_is_gib_and_hits_are_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """A block of 512 tokens of Llama 3 8B is 64 MiB: 16 of them are the next GiB."""
    assert main(["curve", SMALL, "--model", "llama-3-8b", "--memory", "6.25"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Yours: 100 blocks (6.2 GiB of Llama 3 8B) find 52.37 % of the prompt tokens.",
        "The next GiB, 16 blocks, would find 51,200 tokens more: 57.34 % of the prompt tokens, and save at least 0.9 s"
        " of prefill on one H200.",
    ]


def test_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON with kept names, a table of every rise, an SVG that is XML, a page without scripts."""
    files = [tmp_path / name for name in ("a.csv", "a.svg", "a.html")]
    options = [word for path in files for word in ("--to", str(path))]
    assert main(["curve", SMALL, "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: report[name] for name in ("requests", "block_size", "smallest", "largest", "knee")} == {
        "requests": 200,
        "block_size": 512,
        "smallest": 35,
        "largest": 187,
        "knee": 67,
    }
    assert [report["points"][index]["hit_tokens"] for index in (0, -1)] == [333_824, 682_496]
    rows = files[0].read_text(encoding="utf-8").splitlines()
    assert rows[:2] == ["num_blocks,hit_tokens,prompt_tokens,hit_rate", "35,333824,1031342,0.323679"]
    assert rows[-1] == "187,682496,1031342,0.661755"
    assert "No pool finds more than 66.18 %" in ElementTree.parse(files[1]).getroot().attrib["aria-label"]
    page = files[2].read_text(encoding="utf-8")
    assert "<svg" in page and "default-src 'none'" in page and "<script" not in page


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--num-blocks", "1"], "num_blocks is 1: the null block takes one, so it must be at least 2"),
        (["--memory", "3"], "--memory needs --model, which says how large a block is"),
        (["--memory", "nan", "--model", "llama-3-8b"], "--memory is nan, it must be above 0"),
        (["--block-size", "0"], "block_size is 0, it must be at least 1"),
        (["--model", "jamba"], "state layers beside others need groups: they cannot be treated as full attention"),
        (["--model", "nothing.json"], "nothing.json: there is no such file"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_2(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed on standard output."""
    assert main(["curve", SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mini-kv curve: {problem}")
