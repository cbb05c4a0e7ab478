"""The challenge: the scenarios of its contract, the sentence that a difference breaks, and the badge.

A square of the board is a scenario. The first difference of a program leads to a sentence: what the call did, and where
both sides differ, decide which one.
"""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import takewhile

from mini_kv.course.given.challenge import PUBLIC, Variant
from mini_kv.verify.compare import CORE, EXTRAS, Outcome, Recorded, Verdict, recorded_scenarios, topic_of
from mini_kv.verify.language import State, parse_numbers
from mini_kv.verify.manager import needs
from mini_kv.verify.variant import VariantAdapter

SHOWN = ("tables", "free", "keys")
"""The fields that a program must show, for a square to be green. `keys` are its hashes."""
IN_CONTRACT = {"caching off", "salts", "adapters", "windows", "groups"}
"""What a scenario of the challenge may need."""


def squares(variant: Variant = PUBLIC) -> dict[str, list[Recorded]]:
    """Return the scenarios of each topic. In a variant the engine with its options has recorded them, and not vLLM."""
    chosen: dict[str, list[Recorded]] = {topic: [] for topic in (*CORE, *EXTRAS)}
    for recorded in recorded_scenarios():
        topic = topic_of(recorded)
        if topic in chosen and recorded.part.name == "manager" and {*needs(recorded.scenario)} <= IN_CONTRACT:
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


def sentence_of(outcome: Outcome) -> int:
    """Return the number of the sentence that a difference breaks. 0: it is about something else, or about the form."""
    if outcome.wanted is None or outcome.got is None or topic_of(outcome.recorded) not in (*CORE, *EXTRAS):
        return 0
    topic = topic_of(outcome.recorded)
    if topic in ("windows", "groups"):
        return 17 + EXTRAS.index(topic)
    number = _Difference(outcome).sentence()
    if topic == "salts" and number in (5, 6, 9, 15):
        return 18
    return 17 if topic == "caching-off" and number == 4 else number


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


def state_before(outcome: Outcome) -> State:
    """Return the state before the call that differs, on which both sides agree."""
    state: State = {"tables": "", "free": ""}
    for changed in outcome.recorded.changes[: outcome.num_equal]:
        state |= changed
    return state


class _Difference:
    """A difference in a scenario of one group: the states before and after the call, by their fields."""

    def __init__(self, outcome: Outcome) -> None:
        assert outcome.wanted is not None
        assert outcome.got is not None
        self.call = outcome.call
        self.fields = outcome.fields
        self.wanted, self.got = outcome.wanted, outcome.got
        self.block_size: int = outcome.recorded.scenario.settings["block_size"]
        self.calls_before = outcome.recorded.scenario.calls[: outcome.num_equal]
        self.past: list[State] = [{}]
        for changed in outcome.recorded.changes[: outcome.num_equal]:
            self.past.append(self.past[-1] | changed)
        self.before = self.past[-1]

    def sentence(self) -> int:
        """Return the number of the sentence that the call breaks."""
        match self.call.verb:
            case "new":
                return self._of_new()
            case "lookup":
                return self._of_lookup()
            case "allocate":
                return self._of_allocate()
            case "free":
                return self._of_free()
        return 4  # a block is cached in `allocate`, in no other call

    def _of_new(self) -> int:
        """Nothing happens in `new`, so the pool was wrong from the start, or the request changes it."""
        if "tables" in self.fields:
            return 3
        if "keys" in self.fields and self.before:
            return 4
        free = _numbers(self.got.get("free", ""))
        return 1 if sorted(free) != sorted(_numbers(self.wanted["free"])) or "keys" in self.fields else 2

    def _of_lookup(self) -> int:
        if self.fields != ["result"]:
            return 8
        num_wanted, num_its = (_num_hit(side["result"]) // self.block_size for side in (self.wanted, self.got))
        wanted, its = (_hit(side["result"]) for side in (self.wanted, self.got))
        if num_its == num_wanted:
            keys = self.before["keys"].split()
            return 9 if [keys[block_id] for block_id in its] == [keys[block_id] for block_id in wanted] else 15
        if num_its > num_wanted:
            return self._of_longer_hit(num_wanted, num_its, its)
        missing = wanted[num_its:]
        if self._had_twins(missing[0]):
            return 15
        are_free = [self._refs(block_id) == 0 for block_id in wanted]
        is_capped = num_wanted == (self._num_tokens() - 1) // self.block_size
        if len(missing) == 1 and is_capped and (num_its > 0 or not are_free[0]):
            return 7
        return 14 if all(are_free[num_its:]) and not any(are_free[:num_its]) and is_capped else 6

    def _of_longer_hit(self, num_wanted: int, num_its: int, its: list[int]) -> int:
        """A hit is too long: beyond the cap, after a hole, or with a block of other content. `its`: if it is shown."""
        if num_its * self.block_size >= self._num_tokens():
            return 7
        keys = self.before["keys"].split()
        wrong = its[num_wanted:]
        if any(keys[block_id] == "-" for block_id in wrong):
            had = any(state["keys"].split()[block_id] != "-" for state in self.past[1:] for block_id in wrong)
            return 15 if had else 4
        if not its:
            return 5 if "-" in keys[1:] else 15
        return 6 if any(self._place_of(block_id) != place for place, block_id in enumerate(its)) else 5

    def _of_allocate(self) -> int:
        was, is_refused = self.wanted["result"], self.got["result"] == "refused"
        if (was == "refused") != is_refused or was == "refused":
            return 16
        wanted, its = self._table(self.wanted), self._table(self.got)
        found = self._results_of("lookup")
        hit = _hit(found[0]["result"]) if found and self.call.option("hit") else []
        if "tables" in self.fields:
            if its[: len(hit)] != hit:
                return 10
            if len(its) != len(wanted):
                return 3
            return 14 if {*its[len(hit) :]} & {*hit} else 2 if not self._was_wanted(its) else 10
        if "keys" in self.fields:
            return self._of_hashes()
        if "free" in self.fields:
            return 14 if {*_numbers(self.got["free"])} & {*wanted} else 2
        return 3

    def _was_wanted(self, its: list[int]) -> bool:
        """Return whether the table differs in a block that the request had before."""
        had = self._table(self.before)
        return its[: len(had)] != had

    def _of_hashes(self) -> int:
        """The hashes of the blocks are wrong after `allocate`."""
        own = {*self._table(self.wanted)}
        before = self.before["keys"].split()
        pairs = zip(self.wanted["keys"].split(), self.got["keys"].split(), strict=False)
        differing = [(block_id, wanted, its) for block_id, (wanted, its) in enumerate(pairs) if wanted != its]
        block_id, wanted, its = next(
            (each for each in differing if "-" in each[1:]), differing[0] if differing else (0, "", "")
        )
        if "-" not in (wanted, its):
            return 5
        if its == "-":
            return 4 if block_id in own and before[block_id] != wanted else 15
        return 15 if before[block_id] == its else 4

    def _of_free(self) -> int:
        if "tables" in self.fields:
            return 11
        if "free" not in self.fields:
            return 14 if "keys" in self.fields else 11
        wanted, its = _numbers(self.wanted["free"]), _numbers(self.got["free"])
        if sorted(wanted) != sorted(its):
            return 11
        kept = _numbers(self.before["free"])
        places = [[(block_id in kept) for block_id in queue] for queue in (wanted, its)]
        cached = [state["keys"].split() for state in (self.wanted, self.got) if "keys" in state]
        if len(cached) > 1 and cached[0] != cached[1]:
            return 14
        return 12 if places[0] == places[1] and self._is_turned(wanted, its, kept) else 13

    @staticmethod
    def _is_turned(wanted: list[int], its: list[int], kept: list[int]) -> bool:
        """Return whether the blocks that became free are at the same places, front or end, in another order."""
        if not kept:
            return wanted == its[::-1]
        first, last = wanted.index(kept[0]), wanted.index(kept[-1])
        return {*wanted[:first]} == {*its[:first]} and {*wanted[last:]} == {*its[last:]}

    def _had_twins(self, block_id: int) -> bool:
        """Return whether another block had the same hash, and has lost it."""
        key = self.before["keys"].split()[block_id]
        counts = [state["keys"].split().count(key) for state in self.past[1:]]
        return max(counts) > counts[-1]

    def _num_tokens(self) -> int:
        """Return the tokens that the request has."""
        return int(self._results_of("new append")[0]["result"].split()[0])

    def _results_of(self, verbs: str) -> list[State]:
        """Return the states after the request's earlier calls of these kinds, the last one first."""
        return [
            state
            for call, state in zip(reversed(self.calls_before), reversed(self.past[1:]), strict=True)
            if call.handle == self.call.handle and call.verb in verbs.split()
        ]

    def _table(self, state: State) -> list[int]:
        return _tables(state).get(self.call.handle, [])

    def _place_of(self, block_id: int) -> int | None:
        """Return the place that a block last had in a table."""
        for state in reversed(self.past):
            for table in _tables(state).values():
                if block_id in table:
                    return table.index(block_id)
        return None

    def _refs(self, block_id: int) -> int:
        return sum(block_id in table for table in _tables(self.before).values())


def _tables(state: State) -> dict[str, list[int]]:
    pairs = (words.split(": ", 1) for words in state.get("tables", "").split("; ") if words)
    return {name: _numbers(words) for name, words in pairs}


def _numbers(words: str) -> list[int]:
    return parse_numbers(words.replace("/", " ").replace("-", " ").split())


def _num_hit(result: str) -> int:
    """Return the tokens of a hit."""
    return int(result.split()[1].rstrip(":"))


def _hit(result: str) -> list[int]:
    """Return the blocks of a hit."""
    return _numbers(result.partition(":")[2].replace("?", ""))
