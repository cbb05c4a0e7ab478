"""The report of `mini-kv verify`: counts by topic, and the first difference with both sides drawn."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from mini_kv.course.given.contract import PUBLIC, Variant
from mini_kv.course.given.faulty_managers import FaultyManager
from mini_kv.course.verify.board import board, sign, why_not_green
from mini_kv.course.verify.compare import TOPICS, Outcome, Verdict, recording, topic_of
from mini_kv.course.verify.deviations import DEVIATIONS
from mini_kv.course.verify.diagnosis import sentence_of
from mini_kv.course.verify.likeness import explained, faults_like
from mini_kv.course.verify.scenario_language import State

BY_BLOCK = ("refs", "keys")
"""Fields that have a word per block."""
LABELS = {
    "result": "result",
    "running": "running",
    "waiting": "waiting",
    "computed": "computed",
    "tables": "block tables",
    "refs": "references",
    "free": "free queue",
    "keys": "block hashes",
    "answers": "the index",
    "usage": "usage",
    "stats": "counters",
}
"""The fields, as a reader calls them."""


def report(played: Iterable[Outcome]) -> Iterator[str]:
    """Yield the lines of the report. A topic's row comes as soon as the topic is played: the outcomes come by topic."""
    outcomes: list[Outcome] = []
    yield from table(played, outcomes)
    differing = [outcome for outcome in outcomes if outcome.verdict is Verdict.DIFFERS]
    if not differing:
        return
    first = min(differing, key=lambda outcome: list(TOPICS).index(topic_of(outcome.recorded)))
    yield ""
    yield "The first difference"
    yield "===================="
    yield from difference(first)
    if len(differing) > 1:
        yield ""
        yield "All differences, by cause"
        yield "========================="
        yield from by_cause(differing)


NOTATION = (
    "  0..7: the tokens 0 to 7. rest: all tokens without a slot. hit=pass: `hit_of` is set. hit=adopt: and",
    "  `computed` counts the hit already. compute: the step has run. --scenario NAME prints every line.",
)


def challenge_report(outcomes: Sequence[Outcome], variant: Variant = PUBLIC) -> Iterator[str]:
    """Yield the lines of the board, the first difference, and the sentences of the contract that are broken."""
    recorder = f"vLLM {recording(outcomes[0].recorded.part)['header']['vllm']}" if variant == PUBLIC else "your class"
    yield f"The contract of {recorder}        # equal   x different   . not built"
    yield from board(outcomes)
    reasons = [why_not_green(outcome) for outcome in outcomes if sign(outcome) == "."]
    for reason in dict.fromkeys(reasons):
        yield f"  . {reasons.count(reason)} times: {reason}"
    differing = [outcome for outcome in outcomes if outcome.verdict is Verdict.DIFFERS]
    if not differing:
        return
    yield from ("", "The first difference", "====================")
    yield from difference(differing[0], variant)
    yield from ("", *NOTATION)
    broken = [sentence_of(outcome) for outcome in differing]
    yield from ("", "All differences", "===============")
    for number in sorted({*broken}):
        said = _sentence(number, variant) if number else "the form of a reply"
        yield from wrap(said, 100, initial_indent=f"{broken.count(number):>4}  ", subsequent_indent=" " * 6)


def _sentence(number: int, variant: Variant) -> str:
    return f"sentence {number} of the contract: {variant.sentences[number - 1]}"


def by_cause(differing: Sequence[Outcome]) -> Iterator[str]:
    """Yield each cause, the most frequent first, with the number of its scenarios and the first of them."""
    causes: dict[str, list[Outcome]] = {}
    for outcome, fault in zip(differing, explained(differing), strict=True):
        causes.setdefault(_cause(outcome, fault), []).append(outcome)
    for name, outcomes in sorted(causes.items(), key=lambda item: -len(item[1])):
        yield f"{len(outcomes):>4}  {name}"
        yield f"      {topic_of(outcomes[0].recorded)}: {place(outcomes[0])}"


def _cause(outcome: Outcome, fault: FaultyManager | None) -> str:
    """Return the likely cause of a difference: a known fault, else the fields that differ."""
    if outcome.reason:
        return outcome.reason.splitlines()[0]
    if fault is not None:
        return f"like a known fault. The rule that it breaks: {_rule(fault)}"
    return f"like no known fault: {', '.join(LABELS[field] for field in outcome.fields)}"


def _rule(fault: FaultyManager) -> str:
    """Return the rule that a faulty manager breaks, and the public report of it, if there is one."""
    return f"{fault.breaks} ({fault.seen})" if fault.seen else fault.breaks


def table(played: Iterable[Outcome], outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the counts, a row per topic, and add the outcomes to the list."""
    columns = (Verdict.EQUAL, Verdict.LISTED, Verdict.DIFFERS, Verdict.SKIPPED)
    for topic, of_topic in groupby(played, key=lambda outcome: topic_of(outcome.recorded)):
        found = list(of_topic)
        if not outcomes:
            vllm = recording(found[0].recorded.part)["header"]["vllm"]
            titles = "".join(f"{verdict.value:>11}" for verdict in columns)
            yield f"{f'against vLLM {vllm}':<22}{titles}{'calls':>9}"
        outcomes += found
        yield _row(topic, found, columns)
    yield _row("all", outcomes, columns)
    reasons = [outcome.reason for outcome in outcomes if outcome.verdict is Verdict.SKIPPED]
    for reason in dict.fromkeys(reasons):
        yield f"  skipped {reasons.count(reason)}: {reason}"
    hidden = {field for outcome in outcomes for field in outcome.not_shown}
    if hidden:
        labels = [label for field, label in LABELS.items() if field in hidden]
        yield f"  not compared, because the program does not show it: {', '.join(labels)}"


def _row(topic: str, outcomes: Sequence[Outcome], columns: Sequence[Verdict]) -> str:
    counts = [sum(outcome.verdict is verdict for outcome in outcomes) for verdict in columns]
    num_calls = sum(outcome.num_equal for outcome in outcomes)
    return f"  {topic:<20}" + "".join(f"{count or '-':>11}" for count in counts) + f"{num_calls:>9,}"


def place(outcome: Outcome) -> str:
    """Return the scenario, the number of the call, and the call."""
    scenario = outcome.recorded.scenario
    return f'"{scenario.name}", call {outcome.num_equal + 1} of {len(scenario.calls)}, {outcome.call.text}'


def difference(outcome: Outcome, variant: Variant = PUBLIC) -> Iterator[str]:
    """Yield a difference: what was called, both sides, the sentence that it breaks, and what may explain it."""
    scenario = outcome.recorded.scenario
    yield f"{topic_of(outcome.recorded)}: {place(outcome)}"
    yield f"  {scenario.purpose}"
    settings = {name: value for name, value in scenario.settings.items() if name in ("num_blocks", "block_size")}
    groups = scenario.settings["groups"]
    said = f", groups {groups}" if groups else ""
    yield f"  A pool of {settings['num_blocks']} blocks of {settings['block_size']} tokens{said}. The calls before:"
    yield from (f"    {call.text}" for call in scenario.calls[max(0, outcome.num_equal - 8) : outcome.num_equal])
    yield f"  > {outcome.call.text}"
    yield ""
    if outcome.wanted is None or outcome.got is None:
        yield f"  {outcome.reason}"
        return
    yield from _both_sides(outcome.wanted, outcome.got, outcome.fields)
    if number := sentence_of(outcome):
        yield ""
        yield from wrap(f"It breaks {_sentence(number, variant)}", 100, initial_indent="  ", subsequent_indent="  ")
    yield from _explained(outcome)


def _both_sides(wanted: State, got: State, fields: Sequence[str]) -> Iterator[str]:
    """Yield each field that the program shows: once if both sides are equal, else vLLM's above the program's."""
    for field, label in LABELS.items():
        if field not in got:
            continue
        if field in BY_BLOCK:
            yield from _by_block(label, wanted[field].split(), got[field].split())
        elif field in fields:
            yield f"  {label:<13} vLLM     {wanted[field] or '-'}"
            yield f"  {'':<13} program  {got[field] or '-'}    <--"
        else:
            yield f"  {label:<13} both     {got[field] or '-'}"


def _by_block(label: str, wanted: Sequence[str], got: Sequence[str]) -> Iterator[str]:
    """Yield a field with a word per block, under the numbers of the blocks."""
    num_blocks = max(len(wanted), len(got))
    numbers = [str(block_id) for block_id in range(num_blocks)]
    width = max(map(len, [*wanted, *got, *numbers])) + 1
    yield f"  {'block':<13}          {''.join(f'{number:<{width}}' for number in numbers)}".rstrip()
    rows = [("both", got)] if wanted == got else [("vLLM", wanted), ("program", got)]
    for number, (who, words) in enumerate(rows):
        name = "" if number else label
        yield f"  {name:<13} {who:<9}{''.join(f'{word:<{width}}' for word in words)}".rstrip()
    if wanted != got:
        padded = [*wanted, *[""] * (num_blocks - len(wanted))], [*got, *[""] * (num_blocks - len(got))]
        marks = "".join(f"{'^' if one != other else '':<{width}}" for one, other in zip(*padded, strict=True))
        yield f"  {'':<13} {'':<9}{marks}".rstrip()


def known_fault(outcome: Outcome) -> str:
    """Return the rule that a known fault breaks which shows exactly this difference, or nothing."""
    faults = faults_like(outcome)
    return f"A known fault shows exactly this. The rule that it breaks: {_rule(faults[0])}" if faults else ""


def _explained(outcome: Outcome) -> Iterator[str]:
    """Yield what may explain a difference: a listed rule, and faults that look like this."""
    listed = [rule for rule in DEVIATIONS if rule.deviation_id in outcome.recorded.scenario.deviations]
    faults = faults_like(outcome)
    if listed or faults:
        yield ""
    for rule in listed:
        yield f"  The scenario is about the listed rule `{rule.deviation_id}` ({rule.symbol}): vLLM {rule.vllm}."
        yield f"    mini_kv {rule.mini_kv}, because {rule.why}."
    for fault in faults:
        said = f"A known fault shows exactly this. The rule that it breaks: {_rule(fault)}"
        yield from wrap(said, 100, initial_indent="  ", subsequent_indent="  ")
