"""The challenge: the scenarios of its contract, the board with a square for each, and the badge."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import takewhile

from mini_kv.course.given.contract import PUBLIC, Variant
from mini_kv.course.verify.compare import CORE, EXTRAS, PARTS, Outcome, Recorded, Verdict, recorded_scenarios, topic_of
from mini_kv.course.verify.manager import needs
from mini_kv.course.verify.variant import VariantAdapter

SHOWN = ("tables", "free", "keys")
"""The fields that a program must show, for a square to be green. `keys` are its hashes."""
IN_CONTRACT = {"caching off", "salts", "adapters", "windows", "groups"}
"""What a scenario of the challenge may need."""


def squares(variant: Variant = PUBLIC) -> dict[str, list[Recorded]]:
    """Return the scenarios of each topic. In a variant the engine with its options has recorded them, and not vLLM."""
    chosen: dict[str, list[Recorded]] = {topic: [] for topic in (*CORE, *EXTRAS)}
    for recorded in recorded_scenarios(PARTS[:1]):
        topic = topic_of(recorded)
        if topic in chosen and {*needs(recorded.scenario)} <= IN_CONTRACT:
            chosen[topic].append(recorded)
    if variant == PUBLIC:
        return chosen
    return {topic: [_in_variant(recorded, variant) for recorded in chosen[topic]] for topic in CORE}


def _in_variant(recorded: Recorded, variant: Variant) -> Recorded:
    """Return the scenario with the answers of the variant's engine.

    It ends before a call that is a mistake there: a request that vLLM admits may be refused, and is not there to free.
    """
    player = recorded.part.make_player(VariantAdapter(variant), recorded.scenario.settings)
    states = [player.perform(call) for call in recorded.scenario.calls]
    states = [*takewhile(lambda state: not state["result"].startswith("error "), states)]
    scenario = replace(recorded.scenario, calls=recorded.scenario.calls[: len(states)])
    return recorded._replace(scenario=scenario, changes=states)


def is_green(outcome: Outcome) -> bool:
    """Return whether a program's square is green: equal in every call, and nothing that counts is hidden."""
    return outcome.verdict in (Verdict.EQUAL, Verdict.LISTED) and not {*SHOWN} & {*outcome.not_shown}


def board(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line per topic with a sign per scenario: # equal, x different, . skipped or not shown."""
    lines = []
    for topic in dict.fromkeys(topic_of(outcome.recorded) for outcome in outcomes):
        of_topic = [outcome for outcome in outcomes if topic_of(outcome.recorded) == topic]
        signs = "".join(sign(outcome) for outcome in of_topic)
        lines.append(f"  {topic:<13}{signs:<20}{signs.count('#'):>3} of {len(signs)}")
    return lines


def why_not_green(outcome: Outcome) -> str:
    """Return why a square is neither green nor red."""
    hidden = [name for name in SHOWN if name in outcome.not_shown]
    if outcome.verdict is Verdict.SKIPPED or not hidden:
        return outcome.reason
    return f"its replies do not show {' and '.join(hidden).replace('keys', 'hashes')}"


def sign(outcome: Outcome) -> str:
    """Return the sign of a square: `#`, `x` or `.`."""
    if outcome.verdict is Verdict.DIFFERS:
        return "x"
    return "#" if is_green(outcome) else "."


def green_topics(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the topics of the challenge of which every square is green."""
    green = {outcome.recorded.scenario.name for outcome in outcomes if is_green(outcome)}
    return [topic for topic, of_topic in squares().items() if {one.scenario.name for one in of_topic} <= green]


def badge(version: str, topics: Sequence[str]) -> str:
    """Return an SVG that says in which topics a program is equal to this version of vLLM."""
    left, right = f"equal to vLLM {version}", ", ".join(topics)
    widths = [round(6.6 * len(text) + 14) for text in (left, right)]
    title = escape(f"{left}: {right}")
    whole = f'width="{sum(widths)}" height="22"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {whole} role="img" aria-label="{title}">
<title>{title}</title>
<rect {whole} rx="4" fill="#0b6e4f"/>
<rect width="{widths[0]}" height="22" rx="4" fill="#333"/>
<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
<text x="7" y="15" textLength="{widths[0] - 14}">{left}</text>
<text x="{widths[0] + 7}" y="15" textLength="{widths[1] - 14}">{escape(right)}</text>
</g>
</svg>
"""
