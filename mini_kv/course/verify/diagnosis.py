"""Which sentence of the challenge's contract a difference breaks.

The call, and where both sides differ, decide. Both states before the call are equal, so vLLM's is the program's.
"""

from mini_kv.course.verify.compare import CORE, EXTRAS, Outcome, topic_of
from mini_kv.course.verify.scenario_language import State, parse_numbers


def sentence_of(outcome: Outcome) -> int:
    """Return the number of the sentence that a difference breaks. 0: it is about something else, or about the form."""
    topic = topic_of(outcome.recorded)
    if outcome.wanted is None or outcome.got is None or topic not in (*CORE, *EXTRAS):
        return 0
    if outcome.got["result"].startswith("error "):
        return 0
    if topic in ("windows", "groups"):
        return 17 + EXTRAS.index(topic)
    number = Difference(outcome).sentence()
    if topic == "salts" and number in (5, 6, 9, 15):
        return 18
    return 17 if topic == "caching-off" and number == 4 else number


def state_before(outcome: Outcome) -> State:
    """Return the state before the call that differs, on which both sides agree."""
    state: State = {"tables": "", "free": ""}
    for changed in outcome.recorded.changes[: outcome.num_equal]:
        state |= changed
    return state


class Difference:
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
        its, wanted = ({*_numbers(side["free"])} for side in (self.got, self.wanted))
        return 1 if its - wanted or (wanted - its and max(wanted) not in its) else 2

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
            if self._was_wanted(its) or {*its} & self._used() - {*wanted} or self._is_older_twin(wanted, its):
                return 10
            is_lost = any(self._refs(block_id) == 0 for block_id in hit) and self._pool(self.got) != self._pool(
                self.wanted
            )
            return 14 if {*its[len(hit) :]} & {*hit} or is_lost else 2
        if "keys" in self.fields:
            return self._of_hashes()
        if "free" in self.fields:
            return 14 if {*_numbers(self.got["free"])} & {*wanted} else 2
        return 3

    def _was_wanted(self, its: list[int]) -> bool:
        """Return whether the table differs in a block that the request had before."""
        had = self._table(self.before)
        return its[: len(had)] != had

    def _is_older_twin(self, wanted: list[int], its: list[int]) -> bool:
        """Return whether the first block that differs is another one with the hash of the right one."""
        keys = self.wanted["keys"].split()
        pair = next((pair for pair in zip(wanted, its, strict=True) if pair[0] != pair[1]), (0, 0))
        return keys[pair[0]] != "-" and keys[pair[0]] == keys[pair[1]]

    def _used(self) -> set[int]:
        """Return the blocks that other requests had in their tables."""
        tables = _tables(self.before)
        return {block_id for name, table in tables.items() if name != self.call.handle for block_id in table}

    def _pool(self, state: State) -> set[int]:
        """Return all blocks that are free or in a table."""
        return {*_numbers(state["free"])}.union(*_tables(state).values()) if "free" in state else set()

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
            return 14 if cached[1].count("-") > cached[0].count("-") else 4
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
