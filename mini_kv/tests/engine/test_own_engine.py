"""`mini-kv generate --labs`: the learner's parts in the engine, whose they are, and which one is wrong if one is."""

import re
import shutil
from pathlib import Path

import pytest

from mini_kv.cli import build_parser, main
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.finale.assembly import seams
from mini_kv.course.finale.command import run_with_labs
from mini_kv.course.finale.learner_files import find_parts, own_parts
from mini_kv.course.finale.steps import STEP_LIMIT_S
from mini_kv.course.labkit.lab import all_labs
from mini_kv.engine.generate_text import make_engine, start

REPOSITORY = Path(__file__).parents[3]
SOLUTIONS = REPOSITORY / "solutions"
PROMPT = "A block is free when no table holds it"
LABS = all_labs(REPOSITORY)
USABLE = [str(part) for lab in LABS for part in lab.parts if part.goes_to and part.only_for in ("", "one group")]
USABLE_WITH_WINDOWS = [
    str(part) for lab in LABS for part in lab.parts if part.goes_to and part.only_for in ("", "windows")
]
NEEDS_TRITON = next(lab for lab in LABS if lab.needs == "K").missing


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def generate(capsys, labs, *prompts, status, max_tokens=12, more=(), limit=STEP_LIMIT_S):
    """Run the command; return its table as {part: (owner, remark)}, and what comes below."""
    argv = ["generate", *(prompts or [PROMPT]), "--temperature", "0", "--max-tokens", str(max_tokens), *more]
    args = build_parser("generate").parse_args([*argv, "--labs", str(labs)])
    assert run_with_labs(args, REPOSITORY, limit) == status
    lines = capsys.readouterr().out.splitlines()
    end = lines.index("")
    rows = [re.fullmatch(r"(lab-\d\d \S+) +(yours|solution|mini_kv) +(.+)", line) for line in lines[1:end]]
    return {row[1]: (row[2], row[3]) for row in rows if row}, "\n".join(lines[end + 1 :])


def used(table):
    return [part for part, (owner, _) in table.items() if owner != "mini_kv"]


def folder_of(tmp_path, *labs):
    """Return a folder with the solutions of some labs as a learner's files."""
    for lab_id in labs:
        shutil.copy(SOLUTIONS / lab_id / "solution.py", tmp_path / f"{lab_id}.py")
    return tmp_path


def spoil(folder, lab_id, old, new):
    """Put a mistake into a lab's file; return its place as the command names it."""
    file = folder / f"{lab_id}.py"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    return file


def matching(counts: str) -> list[str]:
    """Return the last two lines of a run whose texts are right."""
    same = f"The same words as mini_kv's own: {counts} parts from the labs."
    return [same, "The labs' tests check more cases."]


@pytest.mark.slow
@pytest.mark.skipif(NEEDS_TRITON is not None, reason=str(NEEDS_TRITON))
def test_the_solutions_make_a_whole_engine_and_it_says_the_same_words(capsys):
    table, below = generate(capsys, "solution", status=0, max_tokens=20)
    assert used(table) == USABLE
    assert table["lab-08 BlockTable"] == ("solution", "solutions/lab-08/solution.py:11")
    assert below.startswith(PROMPT)
    assert below.splitlines()[-2:] == matching("20 tokens, 17 of 17")


MANY_PROMPTS = [f"{PROMPT}, and a block that is free {word}" for word in ("is", "can", "was", "may", "has")]
LITTLE_MEMORY = ["--block-size", "4", "--num-blocks", "16"]
LITTLE_MEMORY_FOR_GROUPS = ["--windows", "--block-size", "4", "--num-blocks", "40"]


def test_with_little_memory_and_much_in_common_it_still_says_the_same_words(capsys, tmp_path):
    """Five prompts that share a beginning, more than the pool holds at once: hits and preemptions."""
    folder = folder_of(tmp_path, *(f"lab-{number:02}" for number in (2, 3, 4, 6, 7, 8, 9, 11)))
    table, below = generate(capsys, folder, *MANY_PROMPTS, status=0, more=LITTLE_MEMORY)
    assert [part for part in USABLE if part not in used(table)] == [part for part in USABLE if "lab-10" in part]
    assert below.splitlines()[-2:] == matching("60 tokens, 15 of 17")


@pytest.mark.parametrize("more", [LITTLE_MEMORY, LITTLE_MEMORY_FOR_GROUPS], ids=["one group", "windows"])
def test_these_prompts_are_hits_and_preemptions(more):
    args = build_parser("generate").parse_args(
        ["generate", *MANY_PROMPTS, "--temperature", "0", "--max-tokens", "12", *more]
    )
    engine = make_engine(args)
    assert sum(len(delta.new_token_ids) for delta in start(engine, args)) == 60
    assert engine.scheduler.num_preemptions > 0
    assert engine.kv_cache_manager.prefix_cache_stats.hits > 0


# The model with windows: each of its three layers is a group.


@pytest.mark.slow
@pytest.mark.skipif(NEEDS_TRITON is not None, reason=str(NEEDS_TRITON))
def test_with_windows_the_solutions_make_a_whole_engine_but_for_the_slots_of_one_group(capsys):
    table, below = generate(capsys, "solution", status=0, max_tokens=40, more=["--windows", "--block-size", "4"])
    assert used(table) == USABLE_WITH_WINDOWS
    assert table["lab-12 group_layers"] == ("solution", "solutions/lab-12/solution.py:69")
    assert table["lab-06 KVCacheManager"] == (
        "mini_kv",
        "it gives slots to one group of layers, and this model has several",
    )
    assert below.splitlines()[-2:] == matching("40 tokens, 19 of 19")


def test_with_windows_and_little_memory_it_still_says_the_same_words_and_finds_as_much(capsys, tmp_path):
    folder = folder_of(tmp_path, *(f"lab-{number:02}" for number in (2, 3, 4, 7, 8, 9, 11, 12)))
    _, below = generate(capsys, folder, *MANY_PROMPTS, status=0, more=LITTLE_MEMORY_FOR_GROUPS)
    assert below.splitlines()[-2:] == matching("60 tokens, 17 of 19")


def test_a_window_that_lets_go_too_early_is_found(capsys, tmp_path):
    """Six blocks that are still read are free: the next tokens are written over them."""
    folder = folder_of(tmp_path, "lab-07", "lab-12")
    file = spoil(folder, "lab-12", "tokens(num_computed_tokens) // self", "tokens(num_computed_tokens + 24) // self")
    more = ["--windows", "--block-size", "4", "--num-blocks", "45"]
    _, below = generate(capsys, folder, *MANY_PROMPTS[:2], status=1, max_tokens=40, more=more)
    assert re.search(r"^\[\d\] Other words than mini_kv's own, from token \d+ on:$", below, re.MULTILINE)
    assert below.splitlines()[-1] == f"With lab-12 SlidingWindowManager from mini_kv the text is right: {file}:11"


# What a lab leaves out is added.


def solution(part):
    """Return the parts to assemble: the solution's for this one and nothing else."""
    everything = find_parts("solution", [lab for lab in LABS if lab.lab_id == part[:6]], REPOSITORY, "one group")
    return own_parts(each for each in everything if str(each.part) == part)


def manager_with(part, num_blocks):
    """Return a manager with the solution's part, blocks of 4."""
    config = KVCacheConfig(num_blocks, (KVCacheGroupSpec(("layers",), FullAttentionSpec(4)),))
    return seams(solution(part))["make_manager"](config, enable_caching=True, max_in_flight_tokens=4)


def held(kv, name, tokens):
    """Admit and return a request whose tokens are all computed."""
    request = kv.new_request(name, tokens)
    blocks, num_hit = kv.get_computed_blocks(request)
    kv.allocate_slots(request, len(tokens) - num_hit, num_hit, blocks)
    request.num_computed_tokens = len(tokens)
    return request


def test_cached_blocks_that_lab_03_hands_out_are_evicted():
    kv = manager_with("lab-03 BlockPool", num_blocks=3)
    kv.free(held(kv, "A", [1, 2, 3, 4, 5, 6, 7, 8]))
    assert [block.block_hash is None for block in kv.block_pool.blocks[1:]] == [False, False]
    held(kv, "B", [9])
    assert kv.get_block_ids("B") == ([2],)
    assert [block.block_hash is None for block in kv.block_pool.blocks[1:]] == [False, True]
    assert len(kv.block_pool.cached_block_hash_to_block) == 1


def test_cached_blocks_are_reused_last_in_an_engine_with_lab_03s_pool():
    kv = manager_with("lab-03 BlockPool", num_blocks=5)
    kv.free(held(kv, "A", [1, 2, 3, 4, 5]))
    assert [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()] == [2, 3, 4, 1]


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({}, True),
        ({"full_sequence_must_fit": True}, False),
        ({"reserved_blocks": 1}, True),
        ({"reserved_blocks": 2}, False),
    ],
)
def test_newcomers_of_lab_06_pass_a_gate(options, fits):
    """Two blocks are free; the newcomer begins with one and will need three."""
    kv = manager_with("lab-06 KVCacheManager", num_blocks=3)
    assert (kv.allocate_slots(kv.new_request("A", list(range(9))), 4, **options) is not None) == fits


def test_who_is_aborted_while_the_worker_has_the_step_is_no_news_to_lab_11():
    kv = manager_with("lab-06 KVCacheManager", num_blocks=9)
    scheduler = seams(solution("lab-11 Scheduler"))["make_scheduler"](kv, SchedulerConfig(max_num_batched_tokens=4))
    for name in "AB":
        scheduler.add_request(kv.new_request(name, [1, 2]), max_tokens=2)
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"A": 2, "B": 2}
    scheduler.finish_requests(["A"])
    assert [output.request_id for output in scheduler.update_from_output(step, {"B": [7]})] == ["B"]


# Without, with nothing, with one.


def test_a_starter_as_the_course_gives_it_is_all_todo(capsys, tmp_path):
    for lab in all_labs(REPOSITORY):
        pristine = REPOSITORY / "mini_kv" / "course" / "labkit" / "starters" / f"{lab.lab_id}.txt"
        shutil.copy(pristine, tmp_path / f"{lab.lab_id}.py")
    table, below = generate(capsys, tmp_path, status=0)
    assert used(table) == []
    reasons = {table[part][1] for part in USABLE if not (NEEDS_TRITON and part.startswith("lab-10"))}
    assert all(reason.endswith("still TODO") for reason in reasons)
    assert table["lab-06 KVCacheManager"] == ("mini_kv", "get_num_blocks_to_allocate: still TODO")
    assert below.endswith("No part is yours yet: these are mini_kv's words.")


def test_every_part_that_is_not_asked_for_has_its_reason(capsys, tmp_path):
    table, _ = generate(capsys, folder_of(tmp_path), status=0)
    assert list(table) == [str(part) for lab in LABS for part in lab.parts]
    assert "" not in [table[part][1] for part in table if part not in USABLE]
    assert table["lab-12 group_layers"][1] == "not needed by this model: no layer has a window (add --windows)"


@pytest.mark.parametrize(
    "lab_id", ["lab-02", "lab-03", "lab-04", "lab-06", "lab-07", "lab-08", "lab-09", "lab-11", "lab-12"]
)
def test_one_lab_alone_is_used_and_the_rest_is_the_engines(capsys, tmp_path, lab_id):
    windows = lab_id == "lab-12"
    more = ["--windows"] if windows else []
    table, below = generate(capsys, folder_of(tmp_path, lab_id), status=0, max_tokens=6, more=more)
    usable = USABLE_WITH_WINDOWS if windows else USABLE
    assert used(table) == [part for part in usable if part.startswith(lab_id)]
    assert table["lab-11 Scheduler"][1].startswith(
        str(tmp_path) if lab_id == "lab-11" else "there is no lab-11.py and no lab-11/starter.py"
    )
    assert "The same words as mini_kv's own: 6 tokens" in below


def test_a_slot_that_is_off_by_one_is_found(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-02", "lab-08", "lab-09", "lab-11")
    file = spoil(folder, "lab-08", "+ positions % block_size", "+ (positions + 1) % block_size")
    _, below = generate(capsys, folder, status=1)
    assert re.search(r"^Other words than mini_kv's own, from token \d+ on:$", below, re.MULTILINE)
    assert below.splitlines()[-1] == (f"With lab-08 compute_slot_mapping from mini_kv the text is right: {file}:36")


@pytest.mark.slow
@pytest.mark.skipif(NEEDS_TRITON is not None, reason=str(NEEDS_TRITON))
def test_a_kernel_that_forgets_a_key_is_found(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-09", "lab-10")
    file = spoil(folder, "lab-10", "index * BLOCK_SIZE + slots < seq_len)", "index * BLOCK_SIZE + slots < seq_len - 1)")
    _, below = generate(capsys, folder, status=1)
    last = f"With lab-10 paged_attention_decode from mini_kv the text is right: {file}:128"
    assert below.splitlines()[-1] == last


def test_right_words_from_wrong_numbers_are_called_luck(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-08", "lab-09")
    spoil(folder, "lab-09", ".squeeze(-1) * scale", ".squeeze(-1) * (scale * 1.02)")
    _, below = generate(capsys, folder, status=1, max_tokens=2)
    said, luck, blame = below.splitlines()[-3:]
    assert said == "The same words as mini_kv's own: 2 tokens, 5 of 17 parts from the labs."
    assert re.fullmatch(r"That was luck: the logits of these tokens differ by up to 0\.\d+\.", luck)
    assert blame == "With all of lab-09 from mini_kv the text is right. Run its tests."


def test_code_that_breaks_is_shown_with_its_line_and_named(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-02", "lab-06", "lab-07", "lab-11")
    file = spoil(folder, "lab-06", "list(hit)\n", "list(hit[0])\n")
    _, below = generate(capsys, folder, status=1)
    line = 1 + file.read_text(encoding="utf-8").splitlines().index(
        "            self.req_to_blocks[request_id] = list(hit[0])"
    )
    assert below.splitlines()[-3:] == [
        "Your engine stopped after 0 tokens: IndexError: list index out of range",
        f"  at {file}:{line}  self.req_to_blocks[request_id] = list(hit[0])",
        f"With lab-06 KVCacheManager from mini_kv the text is right: {file}:15",
    ]


@pytest.mark.slow
def test_what_breaks_while_others_are_aborted_does_not_hide_why_they_are(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-06", "lab-09", "lab-11")
    spoil(folder, "lab-06", "        table = self.req_to_blocks[request_id]\n", "        table = self.nothing\n")
    spoil(folder, "lab-09", "scores = (k @ q[s].unsqueeze(-1)).squeeze(-1) * scale", "scores = 1 / 0")
    _, below = generate(capsys, folder, status=1)
    assert "ZeroDivisionError: division by zero" in below and "scores = 1 / 0" in below
    assert "No single part helps. These are wrong even alone:" in below


def test_a_part_that_another_one_calls_takes_its_lab_along(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-02", "lab-09")
    spoil(folder, "lab-09", "scores = (k @ q[s].unsqueeze(-1)).squeeze(-1) * scale", "scores = 1 / 0")
    _, below = generate(capsys, folder, status=1)
    assert below.endswith("With all of lab-09 from mini_kv the text is right. Run its tests.")


def test_a_file_that_does_not_load_is_not_used(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-02", "lab-03", "lab-04", "lab-11")
    spoil(folder, "lab-04", "def frame(*fields: bytes) -> bytes:", "def frame(*fields: bytes -> bytes:")
    spoil(folder, "lab-11", "class Scheduler(engine.Scheduler):", "class Scheduler(engine.Sheduler):")
    spoil(folder, "lab-03", "    def touch(", "    def tuch(")
    table, below = generate(capsys, folder, status=0, max_tokens=4)
    assert used(table) == ["lab-02 FreeKVCacheBlockQueue"]
    assert table["lab-04 get_request_block_hasher"][1].startswith("SyntaxError in line 12: ")
    assert table["lab-11 Scheduler"][1].startswith("AttributeError in line 12: ")
    assert table["lab-03 BlockPool"][1] == "BlockPool has no method touch(blocks); did you rename it? There is tuch"
    assert "1 of 17 parts from the labs." in below


@pytest.mark.slow
def test_an_endless_loop_ends_with_the_line_that_it_was_in(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-02", "lab-03", "lab-11")
    file = spoil(folder, "lab-11", "            index += 1\n", "            while True:\n                index += 1\n")
    _, below = generate(capsys, folder, status=1, limit=2)
    assert "Your engine stopped after 1 tokens: it did not return within 2 s" in below
    assert re.search(rf"  at {re.escape(str(file))}:\d+  (while True:|index \+= 1)$", below, re.MULTILINE)
    assert below.endswith(f"With lab-11 Scheduler from mini_kv the text is right: {file}:12")


@pytest.mark.slow
def test_a_file_that_never_ends_loading_is_not_used(capsys, tmp_path):
    folder = folder_of(tmp_path, "lab-02")
    (folder / "lab-04.py").write_text(
        "while True:\n    try:\n        pass\n    except BaseException:\n        pass\n", encoding="utf-8"
    )
    table, _ = generate(capsys, folder, status=0, max_tokens=2, limit=2)
    assert table["lab-04 get_request_block_hasher"][1] == "loading the file takes longer than 2 s"


@pytest.mark.parametrize(
    ("lab_id", "old", "new", "more"),
    [
        ("lab-07", "            if found is None:", "            if True:", []),
        ("lab-12", "= max_cache_hit_length // self", "= 0 * max_cache_hit_length // self", ["--windows"]),
    ],
    ids=["one group", "groups that agree on nothing"],
)
def test_a_cache_that_finds_nothing_says_the_same_words_and_is_told_so(capsys, tmp_path, lab_id, old, new, more):
    folder = folder_of(tmp_path, lab_id)
    spoil(folder, lab_id, old, new)
    prompts = [PROMPT, f"{PROMPT}, and"]
    _, below = generate(capsys, folder, *prompts, status=0, more=[*more, "--block-size", "4"])
    assert re.search(r"hits on 0 of (\d+) tokens, and mini_kv's on [1-9]\d* of \1 tokens\.$", below, re.MULTILINE)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["good", "--labs", "no/such"],
            "--labs 'no/such': it is neither starter nor solution, and there is no such folder",
        ),
        (
            ["good", "--labs", "solution", "--n", "2"],
            "--n is 2, but --labs compares one answer to each prompt: leave it out",
        ),
        *(
            (
                ["good", "--labs", "solution", option, value],
                f"{option}: the parts of --labs run without tiers: leave out one of the two",
            )
            for option, value in [("--memory-tier", "64"), ("--disk-tier", "blocks"), ("--server-tier", "redis://x")]
        ),
        (["", "--labs", "starter"], "the prompt of request '0' is empty: there is nothing to continue"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_written(argv, message, capsys):
    assert main(["generate", *argv]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"mini-kv generate: {message}\n")
