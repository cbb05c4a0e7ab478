"""What the learner's commands say when something is in the way: a sentence that helps on, and no traceback."""

import ctypes
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.course.commands.doctor_command import EXTRAS, UNTRIED_TORCH, check_torch, doctor_lines
from mini_kv.course.labkit.lab import load_lab
from mini_kv.installer import pip
from mini_kv.story.figure import page, spans_data
from mini_kv.story.scenario import load_scenario, scenario_names
from mini_kv.tests.throwaway_lab import LAB_TOML

ROOT = Path(__file__).parents[2]
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;"
LONG = "x" * 5000
NUL = "a\0b"
NUL_IS_REFUSED = "mini-kv: the argument {!r} has a NUL byte, which no path can have\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with lab-05 alone, untouched; we are in it."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "labs/lab-05", tmp_path / "labs/lab-05", ignore=shutil.ignore_patterns("__pycache__"))
    lab = load_lab(tmp_path / "labs/lab-05")
    shutil.copy(lab.pristine_starter, lab.starter)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# A word that was mistyped -------------------------------------------------------------------------------------------


def test_a_mistyped_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """The verb that was probably meant comes first."""
    with pytest.raises(SystemExit) as caught:
        main(["stroy", "share-and-evict"])
    assert caught.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("mini-kv: error: there is no verb 'stroy'; did you mean story? there are: story, puzzle, ")


def test_a_story_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    """All names, each with its title; the one to begin with is marked. For a mistyped name, the nearest one."""
    assert main(["story", "share-and-evcit"]) == 2
    said = "mini-kv story: no scenario 'share-and-evcit'; did you mean share-and-evict? there"
    assert capsys.readouterr().err.startswith(said)
    assert main(["story"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "type  mini-kv story NAME  with one of these, or with a lab's number and a test"
    told = [line.removesuffix("   <- begin here").split(maxsplit=1) for line in lines]
    assert told == [[n, load_scenario(n).title] for n in scenario_names()]
    assert [line.split()[0] for line in lines if line.endswith("<- begin here")] == ["share-and-evict"]


def test_a_puzzle_that_was_solved_is_remembered(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the clone; one that was left, or that there is not, leaves no trace."""
    for name, typed, status in [("make-room", "2\n3\n", 0), ("twins", "1\n", 1), ("make-rom", "", 2)]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(["puzzle", name]) == status
    said = capsys.readouterr()
    assert "Solved in 2 calls." in said.out
    assert said.err.startswith(
        "mini-kv puzzle: no puzzle 'make-rom'; did you mean make-room? there are: make-room, twelve-of-"
    )
    assert main(["puzzle"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "solved" in line] == [
        "  make-room           2 minutes   Make room   solved in 2 calls"
    ]


def test_a_hint_without_a_function(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What there are hints for, ready to be typed; none is used up."""
    assert main(["hint", "05"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "lab-05 has hints; type one of",
        "  mini-kv hint 05 prefill",
        "  mini-kv hint 05 ref_counts",
        "  mini-kv hint 05 cache_hit_rate",
    ]
    assert not (checkout / ".mini_kv").exists()


@pytest.mark.parametrize("function", ["reshape_and_cache_kernel", "paged_attention_decode_kernel"])
def test_a_kernel_has_the_hints_of_its_function(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """lab-10's starter asks for a kernel and for its launcher; the hints are about both."""
    shutil.copytree(ROOT / "labs/lab-10", tmp_path / "labs/lab-10")
    monkeypatch.chdir(tmp_path)
    assert main(["hint", "10", function]) == 0
    told = capsys.readouterr().out
    hints = {one.name: one.hints for one in load_lab(ROOT / "labs/lab-10").functions}
    assert told.splitlines()[0] == f"1. {hints[function.removesuffix('_kernel')][0]}"


# Words that nothing can be called -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["story", "WORD"],
        ["story", "05", "WORD"],
        ["story", "sharing", "--to", "no/xWORD.html"],
        ["hint", "WORD"],
        ["hint", "05", "WORD"],
        ["predict", "WORD"],
        ["run", "--watch", "WORD"],
        ["reset", "WORD"],
        ["generate", "A", "--labs", "WORD"],
        ["replay", "WORD"],
        ["plan", "WORD"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "word", [LONG, NUL, "", "no/such/05", HOSTILE], ids=["long", "NUL", "empty", "path", "hostile"]
)
def test_a_word_that_nothing_can_be_called(
    argv: list[str], word: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, at most a screen of text that does not repeat it all, and nothing is written."""
    assert main([part.replace("WORD", word) for part in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (typed,) = (part.replace("WORD", word) for part in argv if "WORD" in part)
    assert captured.err.startswith(f"mini-kv {argv[0]}: " if word != NUL else NUL_IS_REFUSED.format(typed))
    assert "Traceback" not in captured.err
    assert "x" * 100 not in captured.err or argv[0] == "replay"
    assert "\0" not in captured.err
    assert not (checkout / ".mini_kv").exists()


# Anywhere in the checkout, and outside of it ------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [".", "labs", "labs/lab-05", "book/docs/labs", "notebooks/deep/down"])
def test_the_commands_work_in_any_folder_of_the_checkout(
    folder: str, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in book/docs, which has a folder labs of its own; what one is told to type works where one is."""
    (checkout / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(checkout / folder)
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    up = os.path.relpath(checkout)
    told = next(line for line in lines if line.startswith("next: "))
    assert told.startswith(f"next: read {os.path.relpath(checkout / 'labs/lab-05/README.md')}, then type  ")
    assert told.endswith("then type  mini-kv run 05")
    assert [line for line in lines if line.startswith("(")] == ([] if up == "." else [f"(the labs are in {checkout})"])
    assert main(["hint", "05", "prefill"]) == 0
    assert main(["story", "05", "test_9"]) == 2
    assert "is not a test of lab-05" in capsys.readouterr().err
    assert main(["reset", "05"]) == 0
    assert [path.name for path in sorted((checkout / ".mini_kv").iterdir())] == ["backup", "hints.json", "lock"]
    assert f"labs/ in {checkout}" in "\n".join(doctor_lines(Path.cwd())[0])


@pytest.mark.parametrize(
    "argv",
    [["status"], ["hint", "05"], ["predict", "05"], ["reset", "05"], ["generate", "A", "--labs", "."]],
    ids=" ".join,
)
def test_outside_of_any_checkout_it_says_where_one_is(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the checkout that this mini_kv was installed from."""
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = f"mini-kv {argv[0]}: there are no labs in {tmp_path} or above it: call this in {ROOT}\n"
    assert capsys.readouterr() == ("", said)
    lines, healthy = doctor_lines(tmp_path)
    assert not healthy
    assert [line for line in lines if line.startswith("MISSING")] == [
        f"MISSING  labs/   ->  there are no labs in {tmp_path} or above it: call this in {ROOT}"
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the working folder of a process")
def test_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A sentence."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert main(["status"]) == 2
    finally:
        os.chdir(tmp_path)
    assert capsys.readouterr().err.startswith("mini-kv status: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("points = [", "Invalid value (at end of document)"),
        ('title = "x"', "minutes is missing"),
        (LAB_TOML.partition("[[function]]")[0], "there is no [[function]]: list what the learner writes"),
        (LAB_TOML.replace("points = 10", ""), "points is missing"),
        (LAB_TOML.replace("points = 10", "points = 0"), "points must be a whole number, at least 1"),
        (LAB_TOML.replace("points = 10", 'points = "ten"'), "points must be a whole number, at least 1"),
        (LAB_TOML.replace("minutes = 20", "minuts = 20"), "there is no key 'minuts'. did you mean minutes?"),
        (LAB_TOML.replace('needs = "C"', 'needs = "X"'), "needs is 'X': there are C, T, K"),
        (LAB_TOML.replace("[[function]]", "[function]", 1).partition("[[")[0], "function must be written [[function]]"),
        (LAB_TOML.replace("minutes = 5", ""), "function double: minutes is missing"),
        (f'{LAB_TOML}hints = "Twice?"\n', "function double: hints must be a list of texts"),
        (f'{LAB_TOML}\n[[prediction]]\nid = "cold"\n', "prediction cold: test is missing"),
        (f'{LAB_TOML}\n[[prediction]]\ntest = "test_1_cold"\n', "prediction 1: id is missing"),
        (
            f'{LAB_TOML}\n[[part]]\nname = "double"\n',
            "part double: it needs goes_to, or never with the reason, and not both",
        ),
    ],
)
def test_a_broken_lab_toml_is_one_sentence_with_the_file_and_the_entry(
    text: str, problem: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command that reads it ends with this sentence, and none with a traceback."""
    file = checkout / "labs/lab-05/lab.toml"
    file.write_text(text, encoding="utf-8")
    assert [main(["hint", "05", "prefill"]), main(["predict", "05"]), main(["status"])] == [2, 2, 2]
    said = [f"mini-kv {verb}: {file}: {problem}" for verb in ("hint", "predict", "status")]
    assert capsys.readouterr().err.splitlines() == said


# Pages run no script ------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Collects the elements of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep both."""
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_the_page_of_a_test_runs_no_script_of_the_learners() -> None:
    """A learner's message and a test's title reach the figure as data that ends no element."""
    data = spans_data([], 4, 4, HOSTILE)
    data["ending"] = HOSTILE
    plain = spans_data([], 4, 4, "title")
    plain["ending"] = "ending"
    assert Elements(page(data)).tags == Elements(page(plain)).tags
    assert "alert(1)</script>" not in page(data)


# A checkout that is read-only ---------------------------------------------------------------------------------------


def without_roots_rights() -> None:
    """Let this process obey a file's permissions even if it is root's (Linux: drop CAP_DAC_OVERRIDE)."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no read-only folders")
def test_a_read_only_checkout(checkout: Path) -> None:
    """The lab runs and shows its points, hints are given; one sentence says that nothing is remembered."""
    folders = [checkout, *(path for path in checkout.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAB_IMPL": "starter", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=checkout,
            env=environment,
            preexec_fn=without_roots_rights,
            capture_output=True,
            text=True,
            check=False,
            input="28\n",
        )

    try:
        lab = run("pytest", "labs/lab-05")
        assert (lab.returncode, lab.stderr) == (1, "")
        assert "0 of 50 points" in lab.stdout
        notes = re.findall("^note: .*", lab.stdout, re.MULTILINE)
        assert notes == [f"note: no progress can be saved: {checkout / '.mini_kv'}: Permission denied"]
        for command in (["hint", "05", "prefill"], ["predict", "05"]):
            done = run("mini_kv", *command)
            assert done.returncode == 0
            assert done.stderr == f"no progress can be saved: {checkout / '.mini_kv'}: Permission denied\n"
            assert "1" in done.stdout
        assert run("mini_kv", "status").returncode == 0
        done = run("mini_kv", "reset", "05")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("mini-kv reset: ")
    finally:
        for path in folders:
            path.chmod(0o755)


# What to install ----------------------------------------------------------------------------------------------------


def test_the_doctor_says_that_a_pytorch_is_newer_than_what_was_tried() -> None:
    major, minor = UNTRIED_TORCH
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["attention"] == [f"torch>=2.6,<{major}.{minor}"]
    assert [is_tried for _, is_tried, _, _ in check_torch(f"{major}.{minor - 1}.9+cpu")] == [True]
    assert check_torch(f"{major}.{minor}.0+cpu") == [
        (
            f"PyTorch older than {major}.{minor}, from which on none was tried: here is {major}.{minor}.0+cpu",
            False,
            False,
            f"{pip()} install 'torch<{major}.{minor}'",
        )
    ]
    assert check_torch("") == []


def test_the_doctor_knows_every_extra() -> None:
    """The extras of pyproject.toml, with the packages of those that they build on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        names: set[str] = set()
        for requirement in extras[extra]:
            own = re.match(r"mini_kv\[(.+)\]", requirement)
            names |= packages(own[1]) if own else {re.split(r"[\[<>=;]", requirement)[0].strip()}
        return names

    assert {name: set(extra.packages) for name, extra in EXTRAS.items()} == {name: packages(name) for name in extras}
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {extra.make.removeprefix("make ") for extra in EXTRAS.values()} - {"make"} <= set(targets)


def test_what_one_is_told_to_install_exists() -> None:
    """mini_kv is on no index: an extra is installed in a checkout, and it is one of those that there are."""
    told = []
    for path in subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb", "*.toml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not re.search(r"pip install\s+['\"]?mini[_]kv\[", text), path
        told += re.findall(r"pip install\s+-e\s+'\.\[(\w+)\]'", text) + re.findall(r"install_extra\(['\"](\w+)", text)
    assert {"attention", "engine", "hf"} <= set(told) <= set(EXTRAS)


# An environment without pytest, as `uv run mini-kv` makes it ---------------------------------------------------------

WITHOUT_PYTEST = """
import sys

for name in ("pytest", "_pytest"):
    sys.modules[name] = None  # importing it fails, and it is not found
sys.modules["pip"] = sys if sys.argv[1] == "pip" else None  # any module is found
from mini_kv.cli import VERBS, build_parser, main

if not sys.argv[2:]:
    for verb in VERBS:
        build_parser(verb)
    sys.exit(0)
sys.exit(main(sys.argv[2:]))
"""


def without_pytest(installer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command where pytest is missing. No words: make the parser of each verb."""
    command = [sys.executable, "-c", WITHOUT_PYTEST, installer, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_no_verb_needs_pytest_to_print_its_help() -> None:
    done = without_pytest("uv pip")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("installer", "command"), [("pip", "make lab-05"), ("uv pip", "uv run --group test mini-kv run 05")]
)
def test_the_status_says_how_to_run_a_lab_where_pytest_is_missing(installer: str, command: str, checkout: Path) -> None:
    assert without_pytest(installer, "status").stdout.splitlines()[-1].endswith(f"then type  {command}")


@pytest.mark.parametrize(
    "words", [("run", "05"), ("run", "--watch", "05"), ("story", "05", "test_2"), ("class", "grade", ".")]
)
@pytest.mark.parametrize("installer", ["pip", "uv pip"])
def test_a_verb_that_runs_a_lab_says_how_to_get_pytest(words: tuple[str, ...], installer: str, checkout: Path) -> None:
    """Where pip is missing, uv has made the environment."""
    done = without_pytest(installer, *words)
    said = f"labs are run by pytest, which is not installed: {installer} install pytest, or uvx --with pytest\n"
    verb = "class grade" if words[0] == "class" else words[0]
    assert (done.returncode, done.stderr) == (2, f"mini-kv {verb}: {said}")
