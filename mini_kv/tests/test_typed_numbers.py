"""A typed number outside of its bounds is refused before any work, in a sentence with its option and its bounds."""

import pytest

from mini_kv.cli import main

TRACE = "no-such-file.jsonl"


@pytest.mark.parametrize(
    ("argv", "option", "bad", "bounds"),
    [
        (["serve"], "--port", ["-1", "65536", "99999", "x", ""], "a whole number from 0 to 65,535"),
        (["serve"], "--step-ms", ["-1", "1e3"], "a whole number from 0 to 60,000"),
        (["serve"], "--block-size", ["0", "9" * 30], "a whole number from 1 to 100,000"),
        (["serve"], "--num-blocks", ["-1", "9" * 30], "a whole number from 1 to 10,000,000"),
        (["serve"], "--max-num-seqs", ["0", "9" * 30], "a whole number from 1 to 100,000"),
        (["serve"], "--max-waiting", ["-1"], "a whole number from 0 to 1,000,000"),
        (["attach", "tcp://127.0.0.1:1"], "--seconds", ["-1", "0", "nan", "inf"], "a number above 0"),
        (["verify"], "--timeout", ["-1", "0", "nan", "inf", "1e300"], "a number above 0"),
        (["curve", TRACE], "--parameters", ["-1", "0", "nan", "inf"], "a number above 0"),
        (["curve", TRACE], "--jobs", ["0", "9" * 30], "a whole number from 1 to 1,000"),
        (["curve", TRACE], "--num-blocks", ["-1", "0"], "a whole number from 1 to 1,000,000,000"),
        (["explain", TRACE], "--num-blocks", ["-1", "0"], "a whole number from 1 to 1,000,000,000"),
        (["replay", TRACE], "--jobs", ["-1", "0"], "a whole number from 1 to 1,000"),
        (["replay", TRACE], "--ms-per-step", ["-1", "9" * 30], "a whole number from 0 to 60,000"),
        (["trace", "make", "chat"], "--num-requests", ["-1", "0", "9" * 30], "a whole number from 1 to 1,000,000"),
        (["finale"], "--seed", ["-1", "1.5"], "a whole number from 0 to 1,000,000"),
        (["finale"], "--hours", ["0", "-3", "1.5"], "a whole number from 1 to 1,000,000"),
        (["class", "grade", "."], "--jobs", ["-1", "0"], "a whole number from 1 to 1,000"),
        (["class", "grade", "."], "--seconds", ["-1", "0", "1.5"], "a whole number from 1 to 1,000,000"),
    ],
)
def test_it_names_the_option_and_its_bounds(
    argv: list[str], option: str, bad: list[str], bounds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in bad:
        with pytest.raises(SystemExit) as caught:
            main([*argv, f"{option}={text}"])
        last = capsys.readouterr().err.splitlines()[-1]
        assert caught.value.code == 2
        assert last.startswith(f"mini-kv {argv[0]}"), last
        assert f": error: argument {option}: '{text}' is not {bounds}" in last, last


def test_a_long_one_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--port", "9" * 5000])
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"'{'9' * 60}'... is not a whole number from 0 to 65,535")


@pytest.mark.parametrize(
    ("argv", "text", "problem"),
    [
        (["curve", TRACE, "--to"], "-", "'-' is not a file: standard output has the report, so give a name"),
        (["serve", "--record"], "-", "'-' is not a file: standard output has the report, so give a name"),
        (["doctor", "--gpu", "--to"], "", "'' is not a file: standard output has the report, so give a name"),
        (["story", "sharing", "--to"], "page.pdf", "'page.pdf' is not the name of a file in .html or .svg or .jsonl"),
        (["questions", "--to"], "sheet", "'sheet' is not the name of a file in .html"),
        (["attach", "tcp://127.0.0.1:1", "--trace"], ".", "'.' is a folder: give the name of a file in it"),
    ],
)
def test_what_cannot_be_a_file_is_refused_before_any_work(
    argv: list[str], text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*argv, text])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: argument {argv[-1]}: {problem}\n")
