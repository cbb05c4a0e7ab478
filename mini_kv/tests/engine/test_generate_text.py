"""`mini-kv generate`: growing text and filling blocks on a terminal, the text and nothing else in a pipe."""

import io
import re
import subprocess
import sys

import pytest

from mini_kv.cli import build_parser, main
from mini_kv.core.block import BlockHash
from mini_kv.core.block_pool import BlockPool
from mini_kv.engine.generate_text import make_engine, run_generate, show_live, start, write_plain
from mini_kv.engine.generation_screen import Screen, pool_lines, printable, text_lines
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.output_processor import DeltaOutput
from mini_kv.installer import install_extra
from mini_kv.tiers.tier_config import TierConfig, open_tiers

GREEDY = ["--temperature", "0", "--max-tokens", "12"]


def test_one_prompt_is_gone_on_from(capsys):
    assert main(["generate", "A block is", *GREEDY]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(r"A block is[a-zA-Z ,.:;'\n-]+\n", captured.out)
    assert captured.err == ""


def test_several_prompts_say_what_each_says_alone_and_carry_numbers(capsys):
    texts = {}
    for prompt in ("A block is", "The cache"):
        main(["generate", prompt, *GREEDY])
        texts[prompt] = capsys.readouterr().out
    assert main(["generate", *texts, *GREEDY]) == 0
    assert capsys.readouterr().out == f"[1] {texts['A block is']}[2] {texts['The cache']}"


def test_the_seed_decides_what_is_drawn(capsys):
    said = []
    for seed in ("1", "1", "2"):
        main(["generate", "A block is", "--seed", seed, "--max-tokens", "12"])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_the_figures_go_to_stderr(capsys):
    assert main(["generate", "A", *GREEDY, "--stats"]) == 0
    captured = capsys.readouterr()
    assert "throughput" not in captured.out
    assert "Running: 0 reqs" in captured.err and "steps, " in captured.err


@pytest.mark.slow
def test_drafts_change_no_word_and_the_figures_say_how_many_were_right(capsys):
    told = ["generate", "The free queue", "--temperature", "0", "--max-tokens", "200"]
    assert main(told) == 0
    expected = capsys.readouterr().out
    assert main([*told, "--drafts", "4", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == expected
    numbers = re.findall(r"^(\d+) (?:steps|of (\d+) drafts were right)", captured.err, re.MULTILINE)
    (steps, _), (right, proposed) = numbers
    assert 20 < int(right) < int(proposed)
    assert int(steps) < 180


def test_log_probabilities_stand_behind_the_text(capsys):
    assert main(["generate", "A block is", "--temperature", "0", "--max-tokens", "3", "--logprobs", "2"]) == 0
    text, head, *lines = capsys.readouterr().out.splitlines()
    assert text.startswith("A block is") and head.startswith("[1] natural logarithms")
    assert len(lines) == 3
    for line in lines:  # the likeliest was chosen, so it stands there once
        assert re.fullmatch(r" *'.*' +-\d\.\d{3} #1 +'.*' +-\d\.\d{3} #2", line)


def test_min_p_leaves_the_likeliest_alone(capsys):
    said = []
    for more in (["--temperature", "0"], ["--temperature", "1", "--min-p", "1"]):
        assert main(["generate", "A block is", "--max-tokens", "12", *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_min_tokens_forbids_the_token_that_ends_a_text(capsys):
    """With this seed the fourth token ends the answer; where it may not, the text goes on after the third."""
    said, steps = [], []
    for least in ("0", "4"):
        assert main(["generate", "Q", "--seed", "7", "--max-tokens", "8", "--min-tokens", least, "--stats"]) == 0
        captured = capsys.readouterr()
        said.append(captured.out)
        steps.append(captured.err.splitlines()[-1])
    assert said == ["QA, and\n", "QA, and was not the same.\n"]
    assert steps == ["4 steps, 4 tokens through the model", "8 steps, 8 tokens through the model"]


@pytest.mark.slow
@pytest.mark.parametrize("reload", ["always", "cheaper"])
def test_over_tiers_the_words_are_the_same(reload, tmp_path, capsys):
    """A pool of 9 blocks, below it memory and a disk; the second round finds what the first one evicted."""
    prompts = [f"A block is what {number} requests" for number in range(4)] * 2
    small = ["generate", *prompts, *GREEDY, "--num-blocks", "10", "--block-size", "4"]
    assert main(small) == 0
    expected = capsys.readouterr().out
    assert main([*small, "--memory-tier", "1", "--disk-tier", str(tmp_path), "--reload", reload]) == 0
    assert capsys.readouterr().out == expected
    assert list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_disk_tier_with_a_damaged_index_starts_empty_and_says_so(tmp_path, capsys):
    small = ["generate", "A block is", *GREEDY, "--disk-tier", str(tmp_path)]
    open_tiers(TierConfig(disk_folder=tmp_path)).close()
    (tmp_path / "index.sqlite3").write_bytes(b"no database")
    assert main(small) == 0
    assert capsys.readouterr().err == (
        f"mini-kv generate: the index in {tmp_path} is damaged: it was set aside (index.sqlite3.damaged), and this tier"
        " starts empty\n"
    )


@pytest.mark.slow
def test_parts_are_not_dropped_for_tiers(capsys):
    args = build_parser("generate").parse_args(["generate", "A block is", "--memory-tier", "1"])
    assert run_generate(args, make_runner=ModelRunner) == 2
    message = "the engine over tiers has its own parts, and cannot take make_runner"
    assert capsys.readouterr().err == f"mini-kv generate: {message}\n"


@pytest.mark.parametrize("options", [["--max-tokens", "0"], ["--disk-capacity", "5"]])
def test_a_wrong_number_is_refused_before_torch_is_loaded(options):
    code = (
        f"import sys; from mini_kv.cli import main; print(main(['generate', 'A', *{options}]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, check=True, capture_output=True)
    assert done.stdout == "2 False\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["", "good"], "the prompt of request '0' is empty: there is nothing to continue"),
        (["good", "--max-tokens", "0"], "--max-tokens is 0, it must be at least 1"),
        (["good", "--reload", "cheaper"], "--reload cheaper needs a tier to reload from: --memory-tier, for instance"),
        (["good", "--disk-tier", "x", "--disk-capacity", "0"], "--disk-capacity is 0, it must be 1 to 1,000,000 MiB"),
        (["good", "--memory-tier", "1", "--server-cluster"], "--server-cluster needs the server: --server-tier"),
        (["good", "--disk-capacity", "5"], "--disk-capacity needs the tier whose size it is: --disk-tier DIR"),
        (["good", "--max-tokens", "2", "--min-tokens", "3"], "min_tokens is 3, it must be from 0 to max_tokens, 2"),
        (["good", "--min-p", "2"], "min_p is 2.0, it must be from 0.0 to 1.0"),
        (["good", "--num-blocks", "1"], "num_blocks is 1, it must be at least 2: the null block takes one"),
        (["good", "--num-blocks", "3"], "the pool has 2"),
        (["good", "good " * 1000], "the model reads at most 512, answer included"),
        (["good", "--num-blocks", "1000000000"], "--num-blocks is 1000000000, it must be at most 1,000,000"),
        (["good", "--top-k", "9" * 400], f"--top-k is {'9' * 400}, it must be at most 1,000,000"),
        (
            ["good", "--num-blocks", "1000000", "--block-size", "1000000"],
            "a pool of 1,000,000 blocks of 1,000,000 tokens takes 1,536,000,000,000,000 bytes, which this machine",
        ),
        (["good", "--temperature", "1e400"], "temperature is inf, it must be 0 or a positive number"),
        (["good", "--windows", "--model", "x"], "and --model says 'x': give one"),
        (["good", "--model", "no/such/folder"], "no/such/folder/config.json: there is no such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_written(argv, message, capsys):
    assert main(["generate", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mini-kv generate: ") and message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("more", [[], ["--labs", "starter"]])
def test_without_torch_it_says_what_to_install(more, capsys, monkeypatch):
    monkeypatch.setattr("builtins.__import__", without_torch(__import__))
    assert main(["generate", "A", *more]) == 2
    assert capsys.readouterr().err == f"mini-kv generate: torch is not installed: {install_extra('engine')}\n"


def without_torch(real_import):
    """Return an import that knows no checkpoint, as where torch is missing."""

    def import_(name, *args, **options):
        if name == "mini_kv.engine.checkpoint":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real_import(name, *args, **options)

    return import_


class Terminal(io.StringIO):
    """What a person sees: the cursor can go up, and all below it be cleared."""

    def frames(self) -> list[str]:
        """Return the screen before each clearing, and at the end."""
        lines, frames = [""], []
        for part in re.split(r"(\033\[\d+F\033\[J)", self.getvalue()):
            up = re.fullmatch(r"\033\[(\d+)F\033\[J", part)
            if up:
                frames.append("\n".join(lines))
                lines = [*lines[: -1 - int(up[1])], ""]
            else:
                first, *others = part.split("\n")
                lines = [*lines[:-1], lines[-1] + first, *others]
        return [*frames, "\n".join(lines)]


def test_on_a_terminal_texts_grow_and_blocks_fill(monkeypatch):
    """Two equal prompts of nine tokens in blocks of four: two blocks are shared, and each has one of its own."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "20")
    prompt = "A block is free and cached"
    argv = ["generate", prompt, prompt, "--temperature", "0", "--max-tokens", "8", "--block-size", "4"]
    args = build_parser("generate").parse_args([*argv, "--num-blocks", "13"])
    engine, out = make_engine(args), Terminal()
    assert engine.tokenizer is not None
    num_prompt_tokens = len(engine.tokenizer.encode(prompt))
    texts = [prompt, prompt]
    show_live(engine, start(engine, args), texts, out)
    frames = out.frames()
    num_shared = (num_prompt_tokens - 1) // 4
    num_own = 2 * (-(-num_prompt_tokens // 4) - num_shared)
    marks = "2" * num_shared + "1" * num_own
    assert marks.ljust(12, ".") in frames[0]
    assert f"{len(marks)} of 12 blocks held, step 1" in frames[0]
    assert texts[0] == texts[1] and texts[0].startswith(prompt)
    assert frames[-1].startswith(f"[1] {text_lines(texts, 59)[0].removeprefix('[1] ')}\n")
    assert "0 of 12 blocks held, step 8" in frames[-1] and "o" in frames[-1].splitlines()[-2]


def test_a_pool_is_a_mark_a_block():
    pool = BlockPool(8, enable_caching=True)
    held = pool.get_new_blocks(4)
    pool.cache_full_blocks(held, [BlockHash(b"x" * 32)], num_cached_blocks=0, num_full_blocks=1, kv_cache_group_id=0)
    pool.touch(held[1:2])
    pool.free_blocks([held[0], held[3]])
    assert pool_lines(pool, 5) == ["o21..", ".."]


def test_a_large_pool_does_not_fill_the_screen():
    assert pool_lines(BlockPool(1001, enable_caching=True), 20) == ["." * 20] * 3 + ["... and 940 more"]


def test_texts_are_broken_into_lines_and_keep_their_own():
    assert text_lines(["one two three\n\nfour"], 8) == ["one two", "three", "", "four"]
    assert text_lines(["one", "two"], 8) == ["[1] one", "[2] two"]


def test_what_a_terminal_would_obey_is_not_passed_on():
    assert printable("a\tb\x1b[2Jc\n€") == "a b\ufffd[2Jc\n€"


def test_a_screen_is_drawn_in_place():
    out = Terminal()
    screen = Screen(out)
    screen.draw(["one", "two"])
    screen.draw(["three"])
    assert out.getvalue() == "one\ntwo\n\033[2F\033[Jthree\n"


def test_the_lines_of_a_file_stand_behind_the_prompts_that_were_typed(tmp_path, capsys):
    """A prompt per line; blank lines and a byte order mark are none; a byte that is no text is shown as such."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfThe cache\r\n\r\n")
    (tmp_path / "b.txt").write_bytes(b"two\n\n \nlines \xff\n\n")
    main(["generate", "A block is", "The cache", "two", "lines \ufffd", *GREEDY])
    typed = capsys.readouterr().out
    files = ["--prompts", str(tmp_path / "a.txt"), "--prompts", str(tmp_path / "b.txt")]
    assert main(["generate", "A block is", *files, *GREEDY]) == 0
    assert capsys.readouterr().out == typed


def in_a_process(argv, given):
    code = "import sys; from mini_kv.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "generate", "--prompts", "-", *argv]
    return subprocess.run(command, input=given, capture_output=True, check=False)


@pytest.mark.slow
def test_standard_input_is_a_prompt_and_one_of_a_million_characters_gets_a_sentence():
    done = in_a_process(GREEDY, b"A block is\n")
    assert (done.returncode, done.stdout[:10], done.stderr) == (0, b"A block is", b"")
    done = in_a_process(GREEDY, b"good " * 200_000)
    assert (done.returncode, done.stdout) == (2, b"")
    sentence = b"the prompt of request '0' has 400002 tokens; the model reads at most 512, answer included"
    assert done.stderr == b"mini-kv generate: " + sentence + b"\n"


def test_several_answers_to_each_prompt_each_with_its_number(capsys):
    main(["generate", "A block is", "The cache", "--n", "2", "--max-tokens", "6", "--seed", "4"])
    lines = re.split(r"^\[\d\] ", capsys.readouterr().out, flags=re.MULTILINE)
    assert lines[0] == "" and len(lines) == 5
    assert [line.startswith("A block is") for line in lines[1:]] == [True, True, False, False]
    assert len(set(lines)) == 5


def test_what_a_model_says_to_the_terminal_reaches_it_as_text():
    """A model may say any bytes: here to clear the screen, to ring, to set the window's title."""
    said = "\x1b[2J\x07\x9b1m\x1b]0;title\x07 é\n"
    out = io.StringIO()
    write_plain([DeltaOutput("0", 0, [1], said, "stop")], ["A"], out, 1)
    assert out.getvalue() == "A\ufffd[2J\ufffd\ufffd1m\ufffd]0;title\ufffd é\n\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there is no prompt: write one, or give --prompts FILE with a line that is not blank"),
        (["--prompts", "no/such/file"], "[Errno 2] No such file or directory: 'no/such/file'"),
        (["good", "--n", "0"], "n of request '0' is 0, it must be at least 1"),
        (["good", "--n", "1001"], "--n is 1001, it must be at most 1,000"),
    ],
)
def test_files_and_numbers_that_cannot_be_are_named(argv, message, capsys):
    assert main(["generate", *argv]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"mini-kv generate: {message}\n")
