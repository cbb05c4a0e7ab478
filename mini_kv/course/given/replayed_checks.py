"""Repeats the calls of a check on a faulty manager and on a correct manager, and finds the fewest calls that differ.

Block ids are compared as the contract does: by which other tables have the same block at that moment. So two managers
that hand out different ids do not differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.errors import KVCacheError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.given.correct_managers import CORRECT
from mini_kv.course.given.manager_under_test import Call, ManagerUnderTest
from mini_kv.course.labkit.shrink import shrink
from mini_kv.story.frame import frame_of
from mini_kv.story.text import draw_state

MakeInner = Callable[[int, int], Any]
MAX_REPLAYED = 5_000
"""The most calls that a search may repeat. It takes less than a second."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a repeated call."""

    text: str
    compared: object
    """The part of the result that the contract fixes."""


class Player:
    """Repeats recorded calls on a new manager."""

    def __init__(self, make_inner: MakeInner, num_blocks: int, block_size: int) -> None:
        self.manager = make_inner(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.requests: dict[str, Request] = {}
        self.hits: dict[str, Any] = {}
        """The result of the last lookup of each request."""

    def play(self, call: Call) -> Answer:
        """Repeat the call. Raises `KeyError` if it needs an earlier call that was left out."""
        if call.name == "new_request":
            request = self.manager.new_request(call.request_id, call.token_ids, **dict(call.options))
            self.requests[call.request_id] = request
            return Answer("", None)
        if call.name == "num_free_blocks":
            number = self.manager.block_pool.num_free_blocks
            return Answer(f"{number} free blocks", number)
        if call.name == "get_block_ids":
            return self._of_blocks("blocks", self.manager.get_block_ids(call.request_id)[0], call.request_id)
        request = self.requests[call.request_id]
        missing = call.token_ids[request.num_tokens :]
        if missing:
            request.append_output_token_ids(*missing)
        request.num_computed_tokens = call.num_computed_tokens
        return self._of_request(call, request)

    def _of_request(self, call: Call, request: Request) -> Answer:
        if call.name == "free":
            self.manager.free(request)
            return Answer("", None)
        if call.name == "get_computed_blocks":
            blocks, num_tokens = self.manager.get_computed_blocks(request)
            self.hits[call.request_id] = blocks
            found = self._of_blocks("blocks", blocks.get_block_ids()[0], call.request_id)
            return Answer(f"a hit of {num_tokens} tokens", (num_tokens, found.compared))
        options = dict(call.options)
        numbers = options["num_new_tokens"], options["num_new_computed_tokens"]
        hit = self.hits[options["hit_of"]] if options["hit_of"] is not None and numbers[1] else None
        new = self.manager.allocate_slots(request, *numbers, hit, options["num_lookahead_tokens"])
        if new is None:
            return Answer("refused", None)
        return self._of_blocks("new blocks", new.get_block_ids()[0], call.request_id)

    def _of_blocks(self, what: str, ids: Sequence[int], request_id: str) -> Answer:
        """Return the ids as text. To compare: is it a block, and which other request has it at which place."""
        tables = {name: self.manager.get_block_ids(name)[0] for name in self.requests if name != request_id}
        places: dict[int, tuple[str, int]] = {}
        for name, table in tables.items():
            for place, block_id in enumerate(table):
                places.setdefault(block_id, (name, place))
        seen = [(0 < block_id < self.num_blocks, ids.index(block_id), places.get(block_id)) for block_id in ids]
        shared = " ".join(str(block_id) for block_id in ids if block_id in places)
        also = f", in another table too: {shared}" if shared else ""
        return Answer(f"{what} {' '.join(map(str, ids)) or 'none'}{also}", seen)


@dataclass(frozen=True, slots=True)
class Difference:
    """The calls of a run in which the faulty manager differs from the correct manager, in the last call."""

    calls: list[Call]
    correct: str
    faulty: str
    steps: list[tuple[str, list[str]]] = field(repr=False)
    """Per call: its answer, and its state if the call changed it."""
    is_shortest: bool
    """Whether no single call can be left out. `False` if the run was too long to find out."""

    def told(self) -> Iterator[str]:
        """Yield a text per call, with the state after it. The last one has both answers."""
        for number, (call, (answer, drawing)) in enumerate(zip(self.calls, self.steps, strict=True), start=1):
            is_last = number == len(self.calls)
            head = f"{number}. {call}" if is_last or not answer else f"{number}. {call}: {answer}"
            lines = [head, *(f"     {line}" for line in drawing)]
            if is_last:
                lines += [f"   a correct manager:  {self.correct}", f"   this manager:       {self.faulty}"]
            yield "\n".join(lines)


class Comparison:
    """Compares a faulty manager with a correct manager, until `MAX_REPLAYED` calls were repeated."""

    def __init__(self, faulty: MakeInner, num_blocks: int, block_size: int) -> None:
        self.faulty = faulty
        self.size = num_blocks, block_size
        self.num_replayed = 0

    @property
    def is_over(self) -> bool:
        """Whether no more calls may be repeated."""
        return self.num_replayed > MAX_REPLAYED

    def differs(self, calls: Sequence[Call]) -> bool:
        """Return whether the faulty one differs in one of these calls. After the last repetition it returns `False`."""
        return not self.is_over and self.first_difference(calls) is not None

    def first_difference(self, calls: Sequence[Call]) -> tuple[int, str, str] | None:
        """Return the number of the first call that differs, with both answers, or `None` if the calls do not differ."""
        right, wrong = Player(CORRECT[0].make, *self.size), Player(self.faulty, *self.size)
        for number, call in enumerate(calls):
            self.num_replayed += 1
            try:
                want = right.play(call)
            except (KVCacheError, KeyError):
                return None  # a call that it needs was left out
            try:
                got = wrong.play(call)
            except Exception as error:
                return number, want.text or "no exception", f"{type(error).__name__}: {error}"
            if want.compared != got.compared:
                return number, want.text, got.text
        return None


def find_difference(manager: ManagerUnderTest, faulty: MakeInner) -> Difference | None:
    """Return the fewest calls of this manager in which the faulty one differs, or `None` if no call differs."""
    size = manager.num_blocks, manager.block_size
    comparison = Comparison(faulty, *size)
    found = comparison.first_difference(manager.calls)
    if found is None:
        return None
    calls = manager.calls[: found[0] + 1]
    for request_id in dict.fromkeys(call.request_id for call in calls):  # whole requests first, which saves most
        without = [call for call in calls if call.request_id != request_id]
        calls = without if comparison.differs(without) else calls
    calls = shrink(calls, comparison.differs)
    found = comparison.first_difference(calls)
    if found is None:
        return None
    number, want, got = found
    calls = calls[: number + 1]
    steps = list(_steps(Player(faulty, *size), calls))
    return Difference(calls, want, got, steps, is_shortest=not comparison.is_over)


def _steps(player: Player, calls: Sequence[Call]) -> Iterator[tuple[str, list[str]]]:
    """Yield the answer to each call, and the state after it, or no line if the call did not change it."""
    before = _draw(player)
    for call in calls:
        answer = ""
        try:
            answer = player.play(call).text
            drawing = _draw(player)
        except Exception as error:
            drawing = [f"cannot be drawn: {error}"]
        yield answer, drawing if drawing != before else []
        before = drawing


def _draw(player: Player) -> list[str]:
    return draw_state(frame_of(player.manager)) if isinstance(player.manager, KVCacheManager) else []
