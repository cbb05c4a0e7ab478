"""The figure `<kv-story>` from Python: a story's data, the one script that draws it, and the HTML around both.

data = story_data(load_scenario("share-and-evict"))        # played on the real engine
page(data)                    # a page that needs nothing else
fragment(data), script()      # for a page with many figures: the script once, a fragment per figure
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib import resources
from string import Template

from mini_kv.core.request import RequestStatus
from mini_kv.story.frame import frames
from mini_kv.story.language import fill, words
from mini_kv.story.puzzle import PuzzlePlayer
from mini_kv.story.scenario import PlayedStep, Scenario, ScenarioPlayer
from mini_kv.story.step_questions import Prediction
from mini_kv.story.still import MOST_BLOCKS, svg
from mini_kv.story.story_json import Data, StoryWriter
from mini_kv.story.traced_manager import Span


def story_data(scenario: Scenario) -> Data:
    """Play the scenario on the real engine and return its story. Raises `ScenarioError` if it cannot be played."""
    return played_data(scenario, ScenarioPlayer(scenario).play())


def played_data(scenario: Scenario, steps: Iterable[PlayedStep]) -> Data:
    """Return the story of a scenario's steps, made by a `ScenarioPlayer` or by another player."""
    writer = StoryWriter(scenario.title, scenario.num_blocks, scenario.block_size)
    if scenario.lang != "en":
        writer.head["lang"] = scenario.lang
    if len(scenario.groups) > 1:
        writer.head["groups"] = list(scenario.groups)
    if scenario.ending:
        writer.head["ending"] = " ".join(scenario.ending.split())
    for played in steps:
        step = played.step
        writer.add_step(
            played.frame,
            played.spans,
            do=f"{step.call} {step.request}".strip(),
            say=step.say,
            predict=_prediction(step.predict, played),
            lines=played.lines,
            waiting=_waiting(played),
            words=played.words,
        )
    return _opened(writer.data())


def _opened(data: Data) -> Data:
    """Return the story with its opening step: the first step with block events, but never after a question."""
    for number, step in enumerate(data["steps"], start=1):
        if "predict" in step:
            return data | {"at": number - 1} if number > 1 else data
        if step.get("events"):
            return data | {"at": number}
    return data


def puzzle_data(player: PuzzlePlayer) -> Data:
    """Return the story of an unfinished puzzle: the calls before it, then the player's. It opens at its end.

    Its title describes the pool. The puzzle's ending is left out, because only a solved puzzle shows it.
    """
    scenario = player.puzzle.scenario
    groups = "" if scenario.groups == ("full",) else f"; layers: {', '.join(scenario.groups)}"
    title = f"{scenario.num_blocks - 1} blocks of {scenario.block_size} tokens{groups}"
    data = played_data(replace(scenario, title=title, ending=""), [*player.before, *player.made])
    return data | {"at": -1}


def spans_data(spans: Sequence[Span], num_blocks: int, block_size: int, title: str, lang: str = "en") -> Data:
    """Return the story of any recorded calls, such as a learner's. The spans must carry snapshots.

    A lookup changes nothing, so it is part of the step of the next call.
    """
    head: Data = {} if lang == "en" else {"lang": lang}
    writer = StoryWriter(title, num_blocks, block_size, **head)
    told: list[Span] = []
    for number, (span, frame) in enumerate(zip(spans, frames(spans, num_blocks), strict=True), start=1):
        told.append(span)
        if span.call == "get_computed_blocks" and span.error is None and number < len(spans):
            continue
        writer.add_step(frame, told)
        told = []
    return writer.data()


def _waiting(played: PlayedStep) -> list[str | list[str]] | None:
    """Return the waiting requests in the figure's format, with the preempted ones marked."""
    if played.waiting is None:
        return None
    return [
        [request.request_id, "preempted"] if request.status is RequestStatus.PREEMPTED else request.request_id
        for request in played.waiting
    ]


def _prediction(predict: Prediction | None, played: PlayedStep) -> Data | None:
    if predict is None:
        return None
    choices = [
        {"text": choice.text, "if_true": choice.if_true} if choice.if_true else {"text": choice.text}
        for choice in predict.choices
    ]
    return {"ask": predict.ask, "choices": choices, "answer": played.right_choice}


@cache
def script() -> str:
    """Return the JavaScript that defines `<kv-story>`. A page needs it once, and a second copy does no harm.

    Its lines are not indented, which makes the page smaller.
    """
    text = resources.files("mini_kv.story").joinpath("kv_story.js").read_text(encoding="utf-8")
    return "".join(line.lstrip() for line in text.splitlines(keepends=True))


def beside(data: Data, other: Data) -> str:
    """Return two figures without their script: they step together, and mark the blocks that differ."""
    return f'<div class="kv-beside">{fragment(data)}{fragment(other, follows=True)}</div>'


def fragment(data: Data, follows: bool = False) -> str:
    """Return a figure without its script. Without scripts the reader sees a still and the story in words.

    `follows`: it is the second of two.

    The `div` is for Markdown, which treats an unknown element as a word in a paragraph.
    """
    return (
        f'<div class="kv-story"><kv-story{_key(data)}{" follows" if follows else ""}>'
        f'<script type="application/json">{_inert(data)}</script>{_still(data)}{_in_words(data)}'
        "</kv-story></div>"
    )


def _still(data: Data) -> str:
    """Return a still of the key step, or an empty string for too large a pool or a story without steps."""
    if data["num_blocks"] > MOST_BLOCKS or not data["steps"]:
        return ""
    return svg(data, key_step(data))


def _key(data: Data) -> str:
    """Return the attribute with the number of the step to print, or an empty string for a story without steps."""
    return f' key="{key_step(data)}"' if data["steps"] else ""


def key_step(data: Data) -> int:
    """Return the number of the step with the most kinds of block events. Of several it is the first."""
    kinds = [len({part.split(" ")[0] for part in step.get("events", "").split(", ")}) for step in data["steps"]]
    return kinds.index(max(kinds)) + 1


def page(data: Data, other: Data | None = None) -> str:
    """Return a page with the figure and its script. It loads nothing, and its security policy forbids loading.

    `other`: a second run, drawn next to the first and stepped with it.
    """
    figure = fragment(data) if other is None else beside(data, other)
    return PAGE.substitute(
        lang=escape(data.get("lang", "en")), title=escape(data["title"]), fragment=figure, script=script()
    )


def _inert(data: Data) -> str:
    """Return the data as JSON in which no character can end or open an element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _in_words(data: Data) -> str:
    steps = []
    for step in data["steps"]:
        told = " ".join(step[name] for name in ("do", "say") if name in step)
        lines = "".join(f"<br><code>{escape(line)}</code>" for line in step["lines"])
        steps.append(f"<li>{escape(told)}{lines}</li>")
    return (
        f'<details slot="words">'
        f"<summary>{escape(fill(words(data.get('lang', 'en'))['inWords'], data['title']))}</summary>"
        f"<ol>{''.join(steps)}</ol><pre>{escape(data['drawing'])}</pre></details>"
    )


PAGE = Template("""<!doctype html>
<html lang="$lang">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1.5rem auto; padding: 0 1rem }
body:has(.kv-beside) { max-width: 80rem }
@media (min-width: 60rem) { .kv-beside { display: grid; grid-template-columns: 1fr 1fr; gap: 2rem } }
@media (max-width: 480px) { body { margin: .5rem auto; padding: 0 .6rem } }
</style>
<main>
$fragment
</main>
<script>
$script
</script>
</html>
""")
