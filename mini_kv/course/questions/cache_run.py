"""A manager of the learner's parts on a random workload: each call with the state before and after it."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from mini_kv.core.request import Request
from mini_kv.course.finale.assembly import make_manager
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.questions.question import BLOCK_SIZE, MAX_LINES, Call, from_letters, letters, listed
from mini_kv.story import scenario
from mini_kv.story.frame import Frame, frame_of
from mini_kv.story.recorder import Recorder
from mini_kv.story.step_questions import Answer, measure_step
from mini_kv.story.text import draw_state
from mini_kv.story.traced_manager import Span, TracedKVCacheManager

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_MAX_ALIVE = 3

Prefill = Callable[[Any, list[int], str], tuple[Request, int] | None]
"""lab-05's function: admit a request and compute its prompt."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A call of the workload."""

    call: Call
    calls: tuple[Call, ...]
    """All calls until this one."""
    before: Frame
    after: Frame
    spans: list[Span]
    state: tuple[str, ...]
    """The state before the call, drawn."""
    result: Any
    """The return value of the learner's method or function."""

    def proof(self) -> tuple[str, ...]:
        """Return the recorded calls and the state after them."""
        return (*map(call_line, self.spans), "after it:", *draw_state(self.after))

    @property
    def text(self) -> str:
        """The tokens of the call as letters, in quotes."""
        return f'"{letters(self.call.tokens)}"'

    @property
    def growth(self) -> str:
        """The sentence about a call that lets a request grow."""
        name, lookahead, args = self.call.name, self.call.number, self.spans[0].args
        more = f", num_lookahead_tokens={lookahead}" if lookahead else ""
        call = f"allocate_slots({name}, {args['num_new_tokens']}{more})"
        return f"{name} has {args['num_computed_tokens']} computed tokens. It gets {self.text}, and {call} is called."

    def measured(self, measure: str) -> Answer:
        """Return one of the measures that stories ask for: of this call, and of the state after it."""
        return measure_step(measure, self.spans, self.after)


class CacheRun:
    """A manager, its requests, and the letters of the blocks that ended requests had."""

    def __init__(
        self, own: OwnParts, num_blocks: int, specs: Sequence[KVCacheSpec], prefill: Prefill | None = None
    ) -> None:
        """Make a manager with one group per spec, of the learner's parts. `prefill`: the learner's, for lab-05."""
        groups = tuple(KVCacheGroupSpec((f"layer {number}",), spec) for number, spec in enumerate(specs))
        self.recorder = Recorder(strict=False)
        manager = make_manager(own, KVCacheConfig(num_blocks, groups), new_block=self.recorder.new_block)
        self.kv = TracedKVCacheManager(manager, self.recorder, snapshots=True)
        self.prefill = prefill or _prefill
        self.alive: dict[str, Request] = {}
        self.ended: dict[str, tuple[Sequence[int], list[list[tuple[int, str | None]]]]] = {}
        """Tokens of an ended request, and per group its blocks with their block hashes at its end."""
        self.calls: list[Call] = []

    def make(self, call: Call) -> Moment:
        """Make a call and return it with its effects."""
        self.calls.append(call)
        before, state, num_spans = frame_of(self.kv.manager), self.drawn(), len(self.kv.spans)
        kinds: dict[str, Callable[[Call], Any]]
        kinds = {"come": self._come, "need": self._need, "grow": self._grow, "end": self._end}
        result = kinds[call.verb](call)
        spans = self.kv.spans[num_spans:]
        return Moment(call, tuple(self.calls), before, frame_of(self.kv.manager), spans, state, result)

    def _come(self, call: Call) -> Any:
        """Admit a request and compute its prompt."""
        result = self.prefill(self.kv, list(call.tokens), call.name)
        if result is not None:
            self.alive[call.name] = result[0]
        return result

    def _need(self, call: Call) -> int:
        """Return the number of free blocks that a new request needs, by the learner's lab-06. Nothing changes."""
        request = self.kv.new_request(call.name, call.tokens)
        blocks, _ = self.kv.get_computed_blocks(request)
        manager: Any = self.kv
        return int(manager.get_num_blocks_to_allocate(call.name, len(call.tokens), blocks.blocks[0]))

    def _grow(self, call: Call) -> Any:
        """Give a request the tokens of the call, and slots for all its tokens and for `call.number` more."""
        request = self.alive[call.name]
        request.append_output_token_ids(*call.tokens)
        num_new = request.num_tokens - request.num_computed_tokens
        result = self.kv.allocate_slots(request, num_new, num_lookahead_tokens=call.number)
        if result is not None:
            request.num_computed_tokens += num_new
        return result

    def _end(self, call: Call) -> None:
        request = self.alive.pop(call.name)
        blocks, tables = self.kv.block_pool.blocks, self.kv.get_block_ids(call.name)
        kept = [[(block_id, _hex(blocks[block_id].block_hash)) for block_id in table] for table in tables]
        self.ended[call.name] = (request.token_ids, kept)
        self.kv.free(request)

    def drawn(self) -> tuple[str, ...]:
        """Return tables, free queue, the letters of all requests, and of the blocks that can still be found."""
        lines = draw_state(frame_of(self.kv.manager))
        lines += [f"{name}  {letters(request.token_ids)}" for name, request in self.alive.items()]
        for name, (tokens, tables) in self.ended.items():
            texts = letters(tokens).split()
            for group, table in enumerate(tables):
                cells = [self._cell(*entry, text) for entry, text in zip(table, texts, strict=False)]
                if any(not cell.startswith("-") for cell in cells):
                    row = name if len(tables) == 1 else f"{name}.{group}"
                    lines.append(f"{row}  {' '.join(cells)}  (ended)")
        return tuple(lines)

    def _cell(self, block_id: int, block_hash: str | None, text: str) -> str:
        """Return the block that an ended request had and its letters, with `-` if it is not found by them anymore."""
        now = _hex(self.kv.block_pool.blocks[block_id].block_hash)
        return f"{block_id if block_hash is not None and now == block_hash else '-'}:{text}"


def play(run: CacheRun, rng: random.Random, num_calls: int, verbs: Sequence[str]) -> Iterator[Moment]:
    """Make random calls of these kinds, and yield those whose state is small enough to draw."""
    stems = ["".join(rng.choices(ALPHABET, k=BLOCK_SIZE * blocks)) for blocks in (2, 3)]
    names = list("ABCDEFGHJKLM")
    for _ in range(num_calls):
        verb = rng.choice(verbs)
        call = _arrival(verb, run, rng, stems, names) if verb in ("come", "need") else _change(verb, run, rng)
        if call is not None:
            moment = run.make(call)
            if len(moment.state) <= MAX_LINES:
                yield moment


def _arrival(verb: str, run: CacheRun, rng: random.Random, stems: Sequence[str], names: list[str]) -> Call | None:
    """Return a call for a new request, or `None` if there are enough."""
    if len(run.alive) == _MAX_ALIVE or len(names) == 1:
        return None
    stem = rng.choice(stems)
    beginning = stem[: rng.choice((len(stem), len(stem), BLOCK_SIZE))]
    text = beginning + "".join(rng.choices(ALPHABET, k=rng.choice((0, 2, 5))))
    return Call(verb, names.pop(0) if verb == "come" else names[0], from_letters(text))


def _change(verb: str, run: CacheRun, rng: random.Random) -> Call | None:
    """Return a call for an admitted request, or `None` if there is none."""
    if not run.alive:
        return None
    name = rng.choice(list(run.alive))
    if verb == "end":
        return Call("end", name)
    return Call("grow", name, from_letters("".join(rng.choices(ALPHABET, k=rng.randint(1, 4)))), rng.choice((0, 0, 3)))


def call_line(span: Span) -> str:
    """Return a recorded call with its result, as a line."""
    words = [span.request_id or ""]
    if span.call == "allocate_slots":
        words.append(str(span.args["num_new_tokens"]))
        if "num_lookahead_tokens" in span.args:
            words.append(f"num_lookahead_tokens={span.args['num_lookahead_tokens']}")
        result = "None" if span.result is None else f"new blocks {listed(_list(span.result))}"
    elif span.call == "get_computed_blocks":
        result = f"{span.result} tokens, blocks {listed(span.found or [])}"
    else:
        result = "done"
    return f"{span.call}({', '.join(words)}): {result}"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _prefill(kv: TracedKVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit a request and compute its prompt, as lab-05's function does."""
    request = kv.new_request(request_id, token_ids)
    num_hits = scenario.prefill(kv, request)
    return None if num_hits is None else (request, num_hits)


def _hex(block_hash: Any) -> str | None:
    return None if block_hash is None else block_hash.hex()
