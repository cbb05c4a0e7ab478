"""The recorded scenarios as a suite for any program: what it finds, what it names, and what it says of bad programs."""

import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.course.verify import manager, scheduler
from mini_kv.course.verify.adapter import Adapter, NotBuiltError
from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.course.verify.adapters.mini_kv_scheduler import SchedulerAdapter
from mini_kv.course.verify.adapters.mini_sglang import SGLangAdapter
from mini_kv.course.verify.adapters.minivllm import MinivLLMAdapter
from mini_kv.course.verify.adapters.nano_vllm import NanoAdapter
from mini_kv.course.verify.compare import (
    TOPICS,
    Outcome,
    Recorded,
    Verdict,
    listed_state,
    matches,
    play,
    recorded_scenarios,
    topic_of,
)
from mini_kv.course.verify.likeness import KNOWN_FAULTS, FaultAdapter, explained, faults_like
from mini_kv.course.verify.program import RESULT_SHAPES, SHAPES, Piped, Program, ProgramError, check_reply
from mini_kv.course.verify.verdict_report import report

ROOT = Path(__file__).parents[2]
SCENARIOS = recorded_scenarios()
OWN_ENGINE = (sys.executable, "-m", "mini_kv.course.verify.adapters.mini_kv_engine")


def recorded(name: str) -> Recorded:
    return next(recorded for recorded in SCENARIOS if recorded.scenario.name == name)


def is_plain(recorded: Recorded) -> bool:
    """Return whether a manager of one group of full attention can play the scenario."""
    settings = recorded.scenario.settings
    plain = not settings["groups"] and settings["enable_caching"] and not settings.get("drafter_groups")
    return recorded.part.name == "manager" and plain and topic_of(recorded) != "misuse"


def played(program: Program, scenarios: Sequence[Recorded]) -> list[Outcome]:
    return [play(recorded, program) for recorded in scenarios]


def first_difference(program: Program) -> Outcome | None:
    for scenario in SCENARIOS:
        if is_plain(scenario):
            outcome = play(scenario, program)
            if outcome.verdict is Verdict.DIFFERS:
                return outcome
    return None


# What it finds --------------------------------------------------------------------------------------------------------


def test_our_own_engine_is_equal_or_differs_as_listed_through_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """The counts are those of the deviations' page: a call that differs on purpose makes its scenario `as listed`."""
    assert main(["verify", "--only", "hits,drafts", "--", *OWN_ENGINE]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "against vLLM 0.33.0         equal  as listed    differs    skipped    calls",
        "  hits                         20          -          -          -      346",
        "  drafts                       21          7          -          -      314",
        "  all                          41          7          -          -      660",
    ]


def test_a_program_may_do_as_vllm_does_where_mini_kv_differs() -> None:
    """The same scenarios on a program that answers with vLLM's recorded states."""

    class Replayed:
        def __init__(self) -> None:
            self.states = iter(theirs)
            self.skipped = ""

        def perform(self, call: Any) -> Any:
            return next(self.states)

    for scenario in SCENARIOS:
        state: dict[str, str] = {}
        theirs = [state := state | changed for changed in scenario.changes]
        same = scenario._replace(part=scenario.part._replace(make_player=lambda program, settings: Replayed()))
        outcome = play(same, ManagerAdapter())
        assert (outcome.verdict, outcome.num_equal) == (Verdict.EQUAL, len(scenario.scenario.calls))


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: fault.breaks[:40])
def test_every_known_faulty_manager_is_found_and_named(fault: Any) -> None:
    """The first difference looks like the fault itself, and perhaps like others that begin in the same way."""
    outcome = first_difference(FaultAdapter(fault))
    assert outcome is not None
    assert fault in faults_like(outcome)


SMALL_ENGINE_FAULTS = {
    # llm-d-inference-sim #704: a prompt's blocks are freed, and evicted, head first
    "[...request.table].reverse()": (
        "[...request.table]",
        ("cold, whole blocks", "free A", "3..9 2 1", "3..9 1 2"),
        "llm-d-inference-sim #704",
    ),
    # llm-d-inference-sim #701: a lookup goes on after a block that is missing
    "if (!this.index.has(hash)) break;": (
        "if (!this.index.has(hash)) continue;",
        ("a hole at the head", "lookup B", "hit 0", "hit 8: 2 3"),
        "llm-d-inference-sim #701",
    ),
}


SMALL_ENGINE = ROOT / "solutions" / "lab-17" / "solution.js"


def small_engine(folder: Path, right: str = "", wrong: str = "") -> list[str]:
    """Return the command of the engine in JavaScript, with one piece of its text replaced."""
    source = SMALL_ENGINE.read_text(encoding="utf-8")
    assert not right or source.count(right) == 1
    (folder / "solution.js").write_text(source.replace(right, wrong), encoding="utf-8")
    return ["node", str(folder / "solution.js")]


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")


@needs_node
def test_an_engine_in_another_language_is_equal_in_all_that_it_plays(tmp_path: Path) -> None:
    with Piped(small_engine(tmp_path)) as program:
        outcomes = played(program, [scenario for scenario in SCENARIOS if topic_of(scenario) != "misuse"])
    skipped = [outcome for outcome in outcomes if outcome.verdict is Verdict.SKIPPED]
    assert len(outcomes) - len(skipped) == 109
    assert [outcome for outcome in outcomes if outcome.verdict not in (Verdict.EQUAL, Verdict.SKIPPED)] == []


@needs_node
@pytest.mark.parametrize("right", SMALL_ENGINE_FAULTS, ids=["evicts the head first", "hits after a hole"])
def test_a_published_fault_is_found_at_its_call_and_named(right: str, tmp_path: Path) -> None:
    wrong, (name, call, theirs, ours), seen = SMALL_ENGINE_FAULTS[right]
    with Piped(small_engine(tmp_path, right, wrong)) as program:
        outcome = first_difference(program)
    assert outcome is not None
    assert outcome.wanted is not None
    assert outcome.got is not None
    assert (outcome.recorded.scenario.name, outcome.call.text) == (name, call)
    (field,) = outcome.fields
    assert (outcome.wanted[field], outcome.got[field]) == (theirs, ours)
    assert [fault.seen for fault in faults_like(outcome)] == [seen]


def test_few_faults_explain_many_differences() -> None:
    """A single difference can look like two faults. All differences together have one cause."""
    (fault,) = (fault for fault in KNOWN_FAULTS if "#704" in fault.seen)
    outcomes = played(FaultAdapter(fault), [scenario for scenario in SCENARIOS if is_plain(scenario)])
    differing = [outcome for outcome in outcomes if outcome.verdict is Verdict.DIFFERS]
    assert len(differing) > 20
    assert any(len(faults_like(outcome)) > 1 for outcome in differing)
    assert set(explained(differing)) == {fault}


# What is compared -----------------------------------------------------------------------------------------------------


class Shows(ManagerAdapter):
    """Our manager, which shows less."""

    def __init__(self, *members: str) -> None:
        self.members = members

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        reply = super().answer(message)
        result = {name: value for name, value in reply["result"].items() if name != "blocks"}
        return {"result": result, **{name: value for name, value in reply.items() if name in self.members}}


def test_what_a_program_does_not_show_is_not_compared() -> None:
    scenarios = [scenario for scenario in SCENARIOS if topic_of(scenario) == "hits"]
    verdicts = [outcome.verdict for outcome in played(Shows("free"), scenarios)]
    assert verdicts == [outcome.verdict for outcome in played(ManagerAdapter(), scenarios)]


def test_the_report_says_what_was_not_compared() -> None:
    lines = list(report(played(Shows("tables", "free"), [recorded("cold, whole blocks")])))
    not_shown = "references, block hashes, the index, usage, counters"
    assert lines[-1] == f"  not compared, because the program does not show it: {not_shown}"
    assert not any(
        "not compared" in line for line in report(played(ManagerAdapter(), [recorded("cold, whole blocks")]))
    )


@pytest.mark.parametrize(
    ("later", "problem"),
    [
        ('{"result": {}}', "the reply has no `free`, which the reply to `start` has"),
        ('{"result": {}, "free": [1], "refs": [0]}', "the reply has `refs`, which the reply to `start` does not have"),
    ],
)
def test_a_program_shows_the_same_after_every_call(later: str, problem: str, tmp_path: Path) -> None:
    """Else what it leaves out would be compared in some calls and not in others, and nobody would know."""
    text = f"""
input(); print('{{"result": {{}}, "free": [1]}}', flush=True)
input(); print('{later}', flush=True)
"""
    with Piped(program_of(tmp_path, text)) as program:
        outcome = play(recorded("cold, whole blocks"), program)
    assert (outcome.reason, outcome.num_equal) == (problem, 0)


def test_a_program_that_shows_only_hits_is_still_found_wrong() -> None:
    (fault,) = (fault for fault in KNOWN_FAULTS if "#701" in fault.seen)

    class ShowsHits(Shows, FaultAdapter):
        def __init__(self) -> None:
            Shows.__init__(self)
            FaultAdapter.__init__(self, fault)

    outcome = first_difference(ShowsHits())
    assert outcome is not None
    assert (outcome.wanted["result"], outcome.got) == ("hit 0", {"result": "hit 8: ?"})  # type: ignore[index]


def test_errors_may_have_any_name_and_blocks_may_be_hidden() -> None:
    assert matches("result", "error ValueError", "error TypeError")
    assert not matches("result", "ok", "error TypeError")
    assert matches("result", "new 1..3", "new ?")
    assert not matches("result", "refused", "new ?")
    assert matches("result", "hit 8: 1 2", "hit 8: ?")
    assert not matches("result", "hit 8: 1 2", "hit 80: ?")
    assert not matches("free", "1..3", "1..4")


def test_what_is_not_built_is_skipped_with_its_reason() -> None:
    class WithoutSalts(ManagerAdapter):
        def do_new(self, message: dict[str, Any]) -> None:
            if message["salt"]:
                raise NotBuiltError("no salts")
            super().do_new(message)

    outcome = play(recorded("one request, one token per step"), ManagerAdapter())
    assert (outcome.verdict, outcome.reason, outcome.num_equal) == (Verdict.SKIPPED, "there is no scheduler", 0)
    outcome = play(recorded("random, namespaces"), WithoutSalts())
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "no salts")
    outcome = play(recorded("cold, whole blocks"), Nothing())
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "`new` is not built")


class Nothing(Adapter):
    """An engine of which nothing is built."""

    def do_start(self, message: dict[str, Any]) -> None:
        """Begin."""

    def visible(self) -> dict[str, Any]:
        return {}


def test_every_scenario_has_a_topic_and_every_topic_has_scenarios() -> None:
    assert {topic_of(scenario) for scenario in SCENARIOS} == set(TOPICS)


def test_a_listed_state_keeps_what_the_call_says_is_unchanged() -> None:
    scenario = recorded("a block is freed twice").scenario
    call = next(call for call in scenario.calls if call.unchanged)
    before = {"result": "ok", "free": "1..9"}
    assert listed_state(call, {"result": "ok", "free": "2..9"}, before) == {
        "result": "error BlockStateError",
        "free": "1..9",
    }


# What it says of bad programs -----------------------------------------------------------------------------------------


def program_of(folder: Path, text: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return [sys.executable, str(path)]


REPLIES = {
    "print('hello', flush=True); input()": "the reply is not JSON: hello",
    "print('[]', flush=True); input()": "the reply is not a JSON object: []",
    "print('{}', flush=True); input()": "the reply has no `result`: {}",
    'print(\'{"result": {}, "queue": []}\', flush=True); input()': (
        "the reply has `queue`, which is not a member; there are result, skip, tables, refs, free, hashes, found,"
        " usage, stats, running, waiting, computed"
    ),
    'print(\'{"result": {}, "free": [1, "2"]}\', flush=True); input()': (
        '`free` is [1, "2"], it must be a list of integers'
    ),
    'print(\'{"result": {}, "tables": {"A": [1]}}\', flush=True); input()': (
        '`tables` is {"A": [1]}, it must be an object of lists of lists of integers'
    ),
    "input(); import time; time.sleep(60)": (
        "no reply after 0.5 seconds; does it flush its standard output after each line?"
    ),
    "print('[' * 100_000, flush=True); input()": f"the reply is not JSON: {'[' * 77}...",
    "print('[' * 65 + ']' * 65, flush=True); input()": f"the reply is not JSON: {'[' * 65 + ']' * 12}...",
    "import sys\nwhile True: sys.stdout.write('a' * 100_000)": (
        "the reply is longer than 4,194,304 bytes; does it end its lines?"
    ),
    "import sys; sys.stderr.write('a' * 10**6 + '\\nthe end\\n'); sys.exit(1)": (
        f"the program has ended with status 1\n    {'a' * 9991}\n    the end"
    ),
    "import sys; sys.exit('no engine here')": "the program has ended with status 1\n    no engine here",
}


@pytest.mark.parametrize(("text", "problem"), REPLIES.items(), ids=[str(n) for n in range(len(REPLIES))])
def test_a_reply_that_cannot_be_used_is_said_at_its_call(text: str, problem: str, tmp_path: Path) -> None:
    with Piped(program_of(tmp_path, text), timeout_s=0.5 if "sleep" in text else 20) as program:
        outcome = play(recorded("cold, whole blocks"), program)
    assert (outcome.verdict, outcome.reason, outcome.num_equal) == (Verdict.DIFFERS, problem, 0)


@pytest.mark.parametrize("engine", [NanoAdapter, MinivLLMAdapter, SGLangAdapter])
def test_a_folder_without_the_engine_is_said(engine: Callable[[Path], Adapter], tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=rf"{re.escape(str(tmp_path))} is not a checkout of .*: no file .*\.py"):
        engine(tmp_path)


def test_a_program_that_ends_is_started_again_for_the_next_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It dies at every `lookup`, and answers all before it."""
    text = """
import json, sys
for line in sys.stdin:
    if json.loads(line)["call"] == "lookup":
        sys.exit("lookup: out of luck")
    print(json.dumps({"result": {}}), flush=True)
"""
    assert main(["verify", "--only", "salts", "--", *program_of(tmp_path, text)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["salts", "-", "-", "8", "-", "8"]
    assert "    lookup: out of luck" in lines
    assert lines[-2:] == [
        "   8  the program has ended with status 1",
        '      salts: "salts", call 2 of 24, lookup A',
    ]


def test_a_program_behind_a_script_ends_with_it(tmp_path: Path) -> None:
    """As with `uv run`: what was started is another process, which holds the pipe open."""
    command = program_of(tmp_path, "import time; print('{}', flush=True); time.sleep(60)")
    script = f"import subprocess; subprocess.run({command!r})"
    start = time.monotonic()
    with Piped([sys.executable, "-c", script]) as program:
        outcome = play(recorded("cold, whole blocks"), program)
    assert outcome.reason == "the reply has no `result`: {}"
    assert time.monotonic() - start < 30


@pytest.mark.skipif(os.name != "posix", reason="Windows has no groups of processes")
def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also if it would outlive its parent: it reads no input, and its connection to us ends only with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        child = f"import socket, time; s = socket.create_connection({server.getsockname()}); time.sleep(60)"
        started = f"subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.DEVNULL)"
        with Piped(program_of(tmp_path, f"import subprocess, sys; {started}; input()")):
            connection, _ = server.accept()
    with connection:
        connection.settimeout(20)
        assert connection.recv(1) == b""


def test_a_program_that_prints_without_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    """Lines that were not asked for wait in the pipe, and the program with them."""
    text = "while True: print('{\"result\": {}}' + ' ' * 4_000_000, flush=True)"
    with Piped(program_of(tmp_path, text)) as program:
        start = {"call": "start"}
        assert program.answer(start) == program.answer(start) == {"result": {}}
        time.sleep(0.5)
        assert program._lines.qsize() <= 2


def test_after_three_silent_scenarios_no_more_are_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import time; time.sleep(60)"
    argv = ["verify", "--only", "hits", "--timeout", "0.1", "--", *program_of(tmp_path, text)]
    assert main(argv) == 1
    told = capsys.readouterr()
    assert told.out.splitlines()[1].split() == ["hits", "-", "-", "3", "-", "0"]
    assert told.err == "mini-kv verify: no reply in 3 scenarios in a row: the other 17 are not played\n"


def test_a_topic_is_printed_as_soon_as_it_is_played() -> None:
    """The report is a row further than the scenarios by one: that of the next topic."""
    chosen = [each for topic in ("hits", "eviction") for each in recorded_scenarios() if topic_of(each) == topic]
    seen: list[str] = []

    def watched() -> Iterator[Outcome]:
        for each in chosen:
            seen.append(topic_of(each))
            yield play(each, ManagerAdapter())

    lines = report(watched())
    assert next(lines).startswith("against vLLM") and next(lines).split()[0] == "hits"
    assert (seen.count("hits"), seen.count("eviction")) == (20, 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--only", "hit", "--", "x"], "there is no topic 'hit'; did you mean hits? there are: hits, "),
        (["--scenario", "cold", "--", "x"], "there is no scenario 'cold'; all: mini-kv verify --list"),
        ([], "which program? Write it after --, as in: mini-kv verify -- ./engine"),
        (["--", "no-such-program"], "no-such-program cannot be started: No such file or directory"),
    ],
)
def test_wrong_arguments(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"mini-kv verify: {problem}")


# What it prints -------------------------------------------------------------------------------------------------------


def test_the_report_draws_both_sides(tmp_path: Path) -> None:
    (fault,) = (fault for fault in KNOWN_FAULTS if "#701" in fault.seen)
    text = "\n".join(report(played(FaultAdapter(fault), [recorded("evict a held block")])))
    assert text.splitlines()[3:] == [
        "",
        "The first difference",
        "====================",
        'evict: "evict a held block", call 7 of 24, lookup B',
        "  The hash goes, the reference stays; the request does not publish it again.",
        "  A pool of 10 blocks of 4 tokens. The calls before:",
        "    new A 0..11",
        "    lookup A",
        "    allocate A rest hit=pass",
        "    compute A",
        "    evict 2",
        "    new B 0..12",
        "  > lookup B",
        "",
        "  result        vLLM     hit 4: 1",
        "                program  hit 8: 1 3    <--",
        "  block tables  both     A: 1..3",
        "  block                  0 1 2 3 4 5 6 7 8 9",
        "  references    both     0 1 1 1 0 0 0 0 0 0",
        "  free queue    both     4..9",
        "  block                  0 1 2 3 4 5 6 7 8 9",
        "  block hashes  both     - 1 - 3 - - - - - -",
        "  the index     both     -",
        "  usage         both     0.333333",
        "  counters      both     1 requests, 12 queries, 0 hits",
        "",
        "  A known fault shows exactly this. The rule that it breaks: A hit ends before the first block that",
        "  is missing. (llm-d-inference-sim #701)",
    ]


def test_a_listed_rule_is_named() -> None:
    """A program that differs from both where the scenario is about a deviation."""

    class FreesNothing(ManagerAdapter):
        def do_release(self, message: dict[str, Any]) -> None:
            """Ignore it."""

    outcome = play(recorded("a block is freed twice"), FreesNothing())
    text = "\n".join(report([outcome]))
    assert (
        "  The scenario is about the listed rule `double-free` (BlockPool.free_blocks): vLLM counts below zero" in text
    )


def test_one_scenario_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--scenario", "cold, whole blocks", "--", *OWN_ENGINE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines[:12]] == [">", "<"] * 6
    assert json.loads(lines[4][2:]) == {"call": "lookup", "request": "A"}
    assert json.loads(lines[5][2:])["result"] == {"hit": 0, "blocks": [[]]}
    assert lines[12:] == ["", "equal: 5 calls"]


def test_the_list_and_the_lines_for_a_build_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--only", "cold", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0] == "cold          cold, less than a block: A partial block gets a slot but no hash."
    assert main(["verify", "--only", "cold", "--json", "--", *OWN_ENGINE]) == 0
    outcomes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(outcomes) == len(listed) == 8
    assert outcomes[0] == {
        "topic": "cold",
        "scenario": "cold, less than a block",
        "verdict": "equal",
        "calls": 9,
        "listed": 0,
        "reason": "",
        "at": "",
        "vllm": None,
        "program": None,
        "not_compared": [],
    }


# The page -------------------------------------------------------------------------------------------------------------

PAGE = (ROOT / "book/docs/reference/verify.md").read_text(encoding="utf-8")


def test_the_page_describes_every_call_and_every_member() -> None:
    items = [re.split("[:→]", line)[0] for line in PAGE.splitlines() if line.startswith("- `")]
    calls = {name for item in items for name in re.findall(r"`(\w+)`", item)}
    assert calls >= {"start", *manager.MESSAGES, *scheduler.MESSAGES}
    said = set(re.findall(r"`(\w+)`", PAGE))
    results = {name for name in RESULT_SHAPES if name not in ("error", "steps", "outputs")}
    assert said >= (set(SHAPES) - {"skip"}) | results | {"steps", "outputs"}
    asked = {
        member
        for part, adapter in ((manager, ManagerAdapter()), (scheduler, SchedulerAdapter()))
        for scenario in part.load_scenarios()[:60]
        for message in messages_of(part, adapter, scenario)
        for member in message
    }
    assert said >= asked - {"call"}


def messages_of(part: Any, adapter: Any, scenario: Any) -> list[dict[str, Any]]:
    """Return all that is asked in a scenario."""
    asked: list[dict[str, Any]] = []

    class Listening:
        def answer(self, message: dict[str, Any]) -> dict[str, Any]:
            asked.append(message)
            reply: dict[str, Any] = adapter.answer(message)
            check_reply(reply, message["call"])
            return reply

    player = part.Player(Listening(), scenario.settings)
    for call in scenario.calls:
        player.perform(call)
    return asked


@pytest.mark.parametrize(
    ("call", "reply", "problem"),
    [
        ("lookup", {"result": {}}, "the result of `lookup` has no `hit`: {}"),
        ("schedule", {"result": {"steps": [], "finished": []}}, "the result of `schedule` has no `preempted`: "),
        ("free", {"result": {}, "hashes": [None], "found": []}, "`hashes` has 1 blocks, and `found` has 0"),
        ("free", {"result": {}, "hashes": [None], "found": [3]}, "`found` has the block 3; blocks go from 0 to 0"),
        ("free", {"result": {}, "stats": [1]}, "`stats` has 1 numbers, it must have 3: requests, queries, hits"),
        (
            "add",
            {"result": {}, "computed": {"A": [1]}},
            "`computed` of A has 1 numbers, it must have 2: computed, known",
        ),
        ("lookup", {"result": {"hits": 3}}, "the reply has `result.hits`, which is not a member"),
        (
            "schedule",
            {"result": {"steps": [{"request": "A"}]}},
            '`result.steps` is [{"request": "A"}], it must be a list of objects with request, computed',
        ),
    ],
)
def test_a_reply_with_a_part_missing(call: str, reply: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProgramError, match=re.escape(problem)):
        check_reply(reply, call)


def test_a_step_with_an_unknown_request() -> None:
    class Invents(SchedulerAdapter):
        def do_schedule(self, message: dict[str, Any]) -> dict[str, Any]:
            step = {"request": "Z", "computed": 0, "tokens": 1, "drafts": [], "blocks": []}
            return {"steps": [step], "finished": [], "preempted": []}

    outcome = play(recorded("one request, one token per step"), Invents())
    assert (outcome.reason, outcome.num_equal) == ("the result has the request 'Z', which was never added", 1)
