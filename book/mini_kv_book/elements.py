"""The fences that become a custom element with its data as JSON: the editor of a lab, puzzles, games and tools.

kv-lab        a lab's id: an editor that runs the lab's real tests
kv-puzzle     a puzzle's name: its picture, its goal, and the calls that the engine carries out
kv-plan       cases: a model, a GPU and a shared prefix; whether they fit, and what is found
kv-play       cases: the engine, with the reader's own texts. The build runs the first case, with PyTorch
kv-planes     one line of fields: the plans of one run, executed by PyTorch in the build and by JavaScript in the page
kv-claims     questions in the form of `mini_kv/course/lessons/predictions.toml`: claims to judge, each with its proof,
              which is the code of the errata's section with the claim's id. It runs again for this page
kv-finale     nothing: the finale. The build plays parts that are wrong on purpose, and the page the reader's own
kv-challenge  nothing: an editor for a cache of the reader's own, and the board of the contract's scenarios
kv-session    nothing: a coding agent's session file, drawn in blocks. Or the word example: only the examples

A case is a line: fields as in an address, a bar, and words. The page opens on the first, the others are buttons.
Without packed Python, or without scripts, the reader sees what is inside the element: the words, and the command that
does the same in a terminal. kv-session and kv-finale need Python only for a reader's own file.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from mini_kv.core.kv_cache_planning import CACHE_DTYPES
from mini_kv.course.commands.puzzle_command import call_count, prompt_lines
from mini_kv.course.labkit.lab import all_labs
from mini_kv.course.lessons.play import Levers
from mini_kv.course.lessons.predict import Question
from mini_kv.course.verify.board import squares
from mini_kv.course.verify.compare import CORE
from mini_kv.policy.catalogue import POLICIES
from mini_kv.story.figure import puzzle_data
from mini_kv.story.puzzle import Puzzle, PuzzlePlayer, load_puzzle, puzzle_names
from mini_kv.story.still import svg
from mini_kv.story.text import LEGEND
from mini_kv.tools.planning.cost import CARDS
from mini_kv.tools.planning.models import load_model, model_names
from mini_kv.tools.planning.states import GDN_PREFILL_BACKENDS
from mini_kv.tools.traces.sessions.analysis import analyse
from mini_kv.tools.traces.sessions.session_formats import EXAMPLE, READERS, read_session_file
from mini_kv.tools.traces.sessions.session_report import report
from mini_kv_book.assets import finale_page, plan_page, session_page
from mini_kv_book.assets.play_page import BOXES, MODELS, problem
from mini_kv_book.course import closed_sentence
from mini_kv_book.curriculum import chapter_of, title_of
from mini_kv_book.fences import code, fence, run_and_show
from mini_kv_book.lab_layout import CHALLENGE, next_of, starter_of, variant
from mini_kv_book.outputs import result_of
from mini_kv_book.places import DOCS, ROOT, chinese_edition, language_of, link_to, said
from mini_kv_book.runs import FenceError, Section, claims_in, run_planes, run_play, section_of

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = sorted(path.name for path in ASSETS.glob("kv_*.*") if path.name not in ("kv_editor.mjs", "kv_lab_worker.js"))
"""What the site serves of them: kv_page.js is in every page, and loads the others where they are needed."""
PACKED = DOCS / "assets" / "kv-lab"
"""What `npm run labs` packs. Its last file, packed.json, says that all of them are there."""
Cases = Sequence[tuple[dict[str, str], str]]
"""The fields and the label of each case."""


def megabytes() -> int | None:
    """Return the download of a reader's first run in MB, or `None` if this book has no Python for the page."""
    file = PACKED / "packed.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["megabytes"]) if file.is_file() else None


def runs_here(needs: str, size: int | None) -> bool:
    """Return whether a lab runs in its page: Python and pytest are enough, and a Python is packed for it."""
    return needs == "C" and size is not None


def element(tag: str, about: object, inside: str, marks: str = "") -> str:
    """Return a custom element: its attributes, its data, and what is seen without a script."""
    data = f'<script type="application/json">{_inert(about)}</script>' if about is not None else ""
    return f"<div><{tag}{marks}>{data}{inside}</{tag}></div>"


def _with_python(tag: str, about: dict[str, Any], inside: str, size: int | None, marks: str = "") -> str:
    """Return an element that needs `size` MB of Python. Without it, it has no data: the page cannot run it."""
    if size is None:
        return element(tag, None, inside, marks)
    return element(tag, about, inside, f"{marks} python")


def _inert(data: object) -> str:
    """Return JSON in which no character can end or open an element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def cases_of(body: str) -> list[tuple[dict[str, str], str]]:
    """Return the cases of a fence. Raises `FenceError` for a line without words."""
    cases = []
    for line in body.strip().splitlines():
        fields, bar, words = line.partition(" | ")
        if not bar:
            raise FenceError(f"{line!r} has no words: write FIELDS | WORDS")
        cases.append((dict(parse_qsl(fields, strict_parsing=True)), words))
    return cases


def _empty(name: str, body: str) -> None:
    """Raise `FenceError` if the fence is not empty."""
    if body.strip():
        raise FenceError(f"{name} has no fields, but this one says {body.strip()!r}")


# Labs -----------------------------------------------------------------------------------------------------------------

_HOME = "On your own machine: edit {0} in an editor that you know, and run {1}. This is the starter:"


@fence
def kv_lab(body: str, md: Any) -> str:
    """Return the editor of the lab, or the commands to run it on the reader's own machine."""
    name = body.strip()
    if not re.fullmatch(r"lab-\d\d(-\w+)?", name) or not (ROOT / "labs" / name).is_dir():
        raise FenceError(f"there is no lab {name!r}")
    if closed := closed_sentence(name):
        return f"<p>{closed}</p>"
    return lab(name, megabytes(), language_of(md))


def lab(name: str, size: int | None, lang: str = "en") -> str:
    """Return `<kv-lab>`. Without `size`, or if the lab needs more than Python and pytest, the page cannot run it."""
    toml = _read_toml(ROOT / "labs" / name / "lab.toml")
    starter = starter_of(name)
    about = {
        "points": toml["points"],
        "starter": starter,
        "hints": {one["name"]: {"levels": one["hints"]} for one in toml["function"]},
        "questions": toml["prediction"],
        "megabytes": size,
        "on": _ways_on(name),
    }
    if lang != "en":
        about |= _in_chinese(name, about)
    home = said(lang, _HOME).format(f"<code>labs/{name}/starter.py</code>", f"<code>make {name}</code>")
    inside = f"<p>{home}</p>{code(starter, 'python')}"
    return _with_python("kv-lab", about, inside, size if runs_here(toml["needs"], size) else None, f' lab="{name}"')


def _in_chinese(name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return the element's Chinese texts: its own words, the lab's questions and hints."""
    path = ROOT / "book" / "data" / f"zh-{name}.toml"
    if not path.is_file():
        raise FenceError(f"{name} is not told in Chinese: there is no book/data/{path.name}")
    told = _read_toml(path)
    translated = [asked | words for asked, words in zip(about["questions"], told["question"], strict=True)]
    words = chinese_edition()["lab"]
    return {"lang": "zh", "words": words, "questions": translated, "hints": told["hints"], "on": told["on"]}


def _ways_on(name: str) -> list[list[str]]:
    """Return the next pages after a passed lab: kind, title and link, from the lab's page."""
    chapter, follows = chapter_of(name), next_of(name, ROOT / "labs")
    ways = [["The chapter", title_of(chapter), f"../../chapters/{chapter}/"], ["At home", f"make {name}", "#run"]]
    if follows is None:
        return ways
    second = _read_toml(ROOT / "labs" / name / "lab.toml").get("second_part")
    link = "#part-2" if follows == second else f"../{follows}/"
    return [["Next", _read_toml(ROOT / "labs" / follows / "lab.toml")["title"], link], *ways]


def _read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


# Puzzles --------------------------------------------------------------------------------------------------------------

WIDTH = 330
"""Width of a small picture in pixels: seven cards in a row."""


@fence
def kv_puzzle(body: str, _md: Any) -> str:
    """Return the puzzle of that name, to be played in the page."""
    name = body.strip()
    if name not in puzzle_names():
        raise FenceError(f"there is no puzzle {name!r}; there are: {', '.join(puzzle_names())}")
    return puzzle_level(load_puzzle(name), megabytes())


def puzzle_level(puzzle: Puzzle, size: int | None) -> str:
    """Return a puzzle under its heading: `#make-room` is its address.

    The heading is not in the page's contents: the grid leads to it.
    """
    number = puzzle_names().index(puzzle.name) + 1
    return (
        f'<section class="kv-level"><h2 id="{puzzle.name}" tabindex="-1">{number}. {escape(puzzle.scenario.title)}</h2>'
        f"{_puzzle(puzzle, size)}</section>"
    )


def _puzzle(puzzle: Puzzle, size: int | None) -> str:
    """Return `<kv-puzzle>`. Without `size` the page shows the command to play it."""
    player = PuzzlePlayer(puzzle)
    story = puzzle_data(player)
    about = {
        "calls": puzzle.calls,
        "most": puzzle.most_calls,
        "hint": puzzle.hint,
        "size": puzzle.scenario.block_size,
        "strips": [asdict(strip) for strip in player.strips()],
        "story": story,
        "megabytes": size,
    }
    told = " ".join(step["say"] for step in story["steps"])
    calls = ", ".join(f"<code>{escape(call)}</code>" for call in puzzle.calls)
    picture = "\n".join([*prompt_lines(puzzle), "", story["drawing"], "", LEGEND])
    inside = (
        f'<p slot="goal"><strong>Goal, in at most {call_count(puzzle.most_calls)}:</strong> {escape(puzzle.goal)}</p>'
        f"<p>{story['title']}. {escape(told)}</p>{code(picture, 'text')}"
        f"<p>The calls: {calls}. Play it in a terminal:</p>{code(f'mini-kv puzzle {puzzle.name}', 'text')}"
        f'<p class="kv-ways" slot="ways">{_next_puzzle(puzzle.name)}</p>'
    )
    return _with_python("kv-puzzle", about, inside, size, f' name="{puzzle.name}"')


def _next_puzzle(name: str) -> str:
    """Return links to the next puzzle, if there is one, and to the grid."""
    next_names = puzzle_names()[puzzle_names().index(name) + 1 :][:1]
    following = [f'<a href="#{one}">Next: {escape(load_puzzle(one).scenario.title)}</a>' for one in next_names]
    return " ".join([*following, '<a href="#puzzles">All puzzles</a>'])


def puzzles() -> str:
    """Return, as Markdown, the grid of puzzles and then each of them, the easiest first."""
    every = [load_puzzle(name) for name in puzzle_names()]
    return "\n".join([puzzle_grid(every), *(f"\n```kv-puzzle\n{puzzle.name}\n```" for puzzle in every)])


def puzzle_grid(every: Sequence[Puzzle]) -> str:
    """Return a list of links, each with a picture, the number of calls, and room for the reader's result."""
    cards = [
        f'<li><div class="kv-thumb" aria-hidden="true">{_small_picture(puzzle)}</div>'
        f'<a href="#{puzzle.name}">{number}. {escape(puzzle.scenario.title)}</a>'
        f"<span>{puzzle.minutes} minutes, {call_count(puzzle.most_calls)}</span>"
        f'<strong data-puzzle="{puzzle.name}"></strong></li>'
        for number, puzzle in enumerate(every, start=1)
    ]
    return f'<ol class="kv-grid">{"".join(cards)}</ol>'


def _small_picture(puzzle: Puzzle) -> str:
    """Return the still of a moment in the puzzle, without words, which would be too small to read."""
    player = PuzzlePlayer(puzzle)
    for call in puzzle.picture:
        player.call(call)
    story = puzzle_data(player)
    for step in story["steps"]:
        step.pop("words", None)
    return svg(story, width=WIDTH)


# Cases: will it fit, and the engine with the reader's texts -----------------------------------------------------------


@fence
def kv_plan(body: str, _md: Any) -> str:
    """Show the answer to the first case, with fields for other ones."""
    return plan(cases_of(body), megabytes())


def plan(cases: Cases, size: int | None) -> str:
    """Return `<kv-plan>`. Without `size` the page cannot answer other questions."""
    first = json.loads(plan_page.answer(json.dumps(cases[0][0])))
    for verb in ("plan", "why"):
        if "error" in first[verb]:
            raise FenceError(f"{first[verb]['command']}: {first[verb]['error']}")
    about = {
        "cases": cases,
        "first": first,
        "megabytes": size,
        "models": sorted(([name, load_model(name).title] for name in model_names()), key=itemgetter(1)),
        "cards": [[name, f"{card.name}, {card.memory / 1e9:g} GB"] for name, card in CARDS.items()],
        "dtypes": list(CACHE_DTYPES),
        "backends": list(GDN_PREFILL_BACKENDS),
    }
    fit, why = first["plan"], first["why"]
    told = " ".join([fit["fits"], *why["said"], why["verdict"]])
    commands = code("\n".join([fit["command"], why["command"]]), "text")
    return _with_python("kv-plan", about, f"<p>{escape(told)}</p>{commands}", size)


@fence
def kv_play(body: str, _md: Any) -> str:
    """Record the first case with PyTorch, and show it with a list of the others."""
    cases = cases_of(body)
    for given, _ in cases:
        if refused := problem(given):
            raise FenceError(refused)
    return play(cases, result_of(run_play, body.strip()), megabytes())


def play(cases: Cases, first: dict[str, Any], size: int | None) -> str:
    """Return `<kv-play>`, with the recorded run of the first case. Without `size` the page cannot run an engine."""
    about = {
        "cases": cases,
        "first": first,
        "megabytes": None if size is None else size + 2,
        "levers": Levers().as_texts(),
        "policies": list(POLICIES),
        "models": list(MODELS.items()),
    }
    texts = "".join(f"<p>{escape(text)}</p>" for name, text in cases[0][0].items() if name in BOXES)
    told = "<p>These texts run in the page if it has scripts. In a terminal, the same model answers your browser:</p>"
    return _with_python("kv-play", about, f"{texts}{told}{code('mini-kv serve', 'text')}", size)


# One run on two data planes -------------------------------------------------------------------------------------------


@fence
def kv_planes(body: str, _md: Any) -> str:
    """Record the run with PyTorch, and show it."""
    record = result_of(run_planes, body.strip())
    return planes(record, model_bytes(record["model"]))


def model_bytes(model: str) -> int | None:
    """Return the size of the weights that the site serves, or `None` if it serves none."""
    file = PACKED / model / "model.safetensors"
    return file.stat().st_size if file.is_file() else None


def planes(record: dict[str, Any], size: int | None) -> str:
    """Return `<kv-planes>`. `size`: bytes of the model's weights. Without it the page cannot execute the plans."""
    rows = "".join(_step(number, step, record["words"]) for number, step in enumerate(record["steps"], start=1))
    table = (
        "<table><thead><tr><th>Step</th><th>Plan: positions</th><th>PyTorch</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
    if size is None:
        return element("kv-planes", None, table)
    return element("kv-planes", record | {"megabytes": round(size / 1e6)}, table, " model")


def _step(number: int, step: dict[str, Any], words: dict[str, str]) -> str:
    """Return one step as a row of the table."""
    planned = ", ".join(f"{row['request_id']} {_positions(row)}" for row in step["plan"])
    told = ", ".join(f"{name} {words[str(token)]!r}" for name, token in step["tokens"].items()) or "no token"
    cells = (f"{number}", planned, f"{told} ({step['ms']} ms)")
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _positions(row: dict[str, Any]) -> str:
    """Return the positions of a request's new tokens."""
    first, last = row["begin"], row["begin"] + len(row["token_ids"]) - 1
    return f"{first}" if first == last else f"{first}\u2013{last}"


# Claims ---------------------------------------------------------------------------------------------------------------


@fence
def kv_claims(body: str, md: Any) -> str:
    """Show the claims, one after the other."""
    judged = [(claim, section_of(claim.id)) for claim in claims_in(body)]
    proofs = ["".join(run_and_show(proof, md) for proof in section.proofs) for _, section in judged]
    return claims(judged, proofs, link_to(md, "book/docs/reference/errata.md"))


def claims(judged: Sequence[tuple[Question, Section]], proofs: Sequence[str], address: str) -> str:
    """Return `<kv-claims>`: the answers as data, and per claim a heading and a fold. `address`: the errata's link."""
    about = [{"answer": claim.answer, "reasons": claim.choices} for claim, _ in judged]
    pairs = [
        f"<h2>{number}. {escape(claim.ask)}</h2>"
        f"<details><summary>Answer and proof</summary>"
        f"<p><strong>{claim.answer}.</strong> {escape(claim.choices[claim.answer])}</p>{proof}"
        f'<p>In the errata: <a href="{escape(address)}#{claim.id}">{escape(section.title)}</a></p></details>'
        for number, ((claim, section), proof) in enumerate(zip(judged, proofs, strict=True), start=1)
    ]
    return element("kv-claims", about, "".join(pairs))


# Fences without fields ------------------------------------------------------------------------------------------------


@fence
def kv_finale(body: str, _md: Any) -> str:
    """Show the finale."""
    _empty("kv-finale", body)
    return finale(megabytes())


WRONG_PARTS = {
    "turns the list": (
        "a queue",
        "It reverses each list of freed blocks, so the beginning of a text is evicted first.",
        "lab-02",
        "append_n",
    ),
    "no parent": ("a hash", "It leaves the parent's hash out.", "lab-04", "get_request_block_hasher"),
    "lets the next pass": ("a scheduler", "A request that does not fit goes to the end.", "lab-11", "schedule"),
}
"""The parts on which the finale's page opens: a button, the fault, and the function of a lab that should be there."""


def finale(size: int | None) -> str:
    """Return `<kv-finale>` with parts that are wrong on purpose. Without `size` the page cannot play the reader's."""
    labs = [
        {"id": one.lab_id, "title": one.title, "starter": starter_of(one.lab_id)}
        for one in all_labs(ROOT)
        if one.needs == "C" and any(part.goes_to for part in one.parts) and not closed_sentence(one.lab_id)
    ]
    examples = [
        finale_page.example(name, fault) | {"title": title, "lab": lab, "def": function}
        for name, (title, fault, lab, function) in WRONG_PARTS.items()
    ]
    told = "".join(f"<p>{escape(said)}</p>" for said in examples[0]["said"])
    command = "<p>In a terminal, with the parts that you have written:</p>" + code("mini-kv finale", "text")
    about = {"megabytes": size, "labs": labs, "examples": examples}
    return element("kv-finale", about, told + command, "" if size is None else " python")


@fence
def kv_challenge(body: str, _md: Any) -> str:
    """Show the challenge."""
    _empty("kv-challenge", body)
    closed = closed_sentence(CHALLENGE)
    return f"<p>{closed}</p>" if closed else challenge(megabytes())


def challenge(size: int | None) -> str:
    """Return `<kv-challenge>`. Without `size` the page cannot play."""
    python = starter_of(CHALLENGE)
    rows = [
        {"topic": topic, "extra": topic not in CORE, "squares": [each.scenario.name for each in of_topic]}
        for topic, of_topic in squares(variant()).items()
    ]
    javascript = (ASSETS / "challenge_empty.js.txt").read_text(encoding="utf-8")
    about = {"megabytes": size, "rows": rows, "empty": {"python": python, "javascript": javascript}}
    told = "<p>Save the empty file as <code>answer.py</code>. In a terminal the board plays it:</p>"
    command = code("mini-kv verify --challenge answer.py", "text")
    return _with_python("kv-challenge", about, f"{told}{command}{code(python, 'python')}", size)


@fence
def kv_session(body: str, _md: Any) -> str:
    """Show the examples and the reader of session files, or the examples alone."""
    if body.strip() == EXAMPLE:
        return session(None)
    _empty("kv-session", body)
    return session(megabytes())


def session(size: int | None) -> str:
    """Return `<kv-session>` with the examples. Without `size` the page cannot read another file."""
    answers = {name: session_page.answer(analyse(read_session_file(EXAMPLE, name))) for name in READERS}
    printed = code("\n".join(report(analyse(read_session_file(EXAMPLE)))), "text")
    command = f"<summary>In a terminal: <code>mini-kv session {EXAMPLE}</code></summary>"
    inside = f'<details class="example" slot="terminal">{command}{printed}</details>'
    about = {"megabytes": size, "examples": answers}
    return element("kv-session", about, inside, "" if size is None else " python")
