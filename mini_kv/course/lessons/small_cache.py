"""A small cache for the reader: the real engine, with one call per press of a button.

    cache = LiveCache(num_blocks=11, block_size=4)
    cache.admit("0..15 100..103")      # "A holds 5 blocks. ..."
    cache.finish("A")
    cache.pressure(3)                  # an unknown request uses 3 blocks, until the next press

Every call returns a sentence, also after a refusal. `LivePlayer` in `notebook` adds the buttons.

    told("admit 0..31", "finish A", "admit 0..31", num_blocks=9)      the same as text, for the answer to a question
    found_in_turn(["0..31", "0..31"])                                 the hit of each prompt, and the rate
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.story.edge import EdgeKind
from mini_kv.story.metrics import MemoryUse, memory_over_time
from mini_kv.story.recorder import Recorder
from mini_kv.story.scenario import parse_tokens, prefill
from mini_kv.story.story_text import id_runs
from mini_kv.story.traced_manager import Span, TracedKVCacheManager

_FIRST_STRANGE_TOKEN = 1_000_000
"""Tokens from here on belong to unknown requests. No prompt of the reader has them."""
_MAX_PROMPT_TOKENS = 400
"""Most tokens of a prompt. More would not fit on a screen."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted request: its prompt, and its hit in tokens."""

    request_id: str
    prompt: tuple[int, ...]
    num_hits: int


class LiveCache:
    """A cache whose calls are recorded, its running requests, and a letter for the next one."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Build the pool. `num_blocks` includes the null block."""
        recorder = Recorder()
        manager = KVCacheManager.for_full_attention(num_blocks, block_size, new_block=recorder.new_block)
        self.kv = TracedKVCacheManager(manager, recorder, snapshots=True)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.told: list[str] = []
        """One sentence per step: an admission, a refusal, or the end of a request."""
        self.admitted: list[Admitted] = []
        """Every admitted request with its hit, except unknown requests."""
        self._running: dict[str, Request] = {}
        self._num_admitted = 0
        self._num_strangers = 0

    @property
    def spans(self) -> list[Span]:
        """All calls to the cache."""
        return self.kv.spans

    @property
    def running(self) -> list[str]:
        """The running requests, in order of admission, except unknown requests."""
        return [name for name in self._running if not name.startswith("stranger")]

    @property
    def found(self) -> str:
        """The hit tokens and the prompt tokens so far."""
        stats = self.kv.prefix_cache_stats
        rate = f" ({100 * stats.hits / stats.queries:.2f} %)" if stats.queries else ""
        return f"{stats.hits:,} of {stats.queries:,} tokens{rate}"

    @property
    def memory(self) -> MemoryUse:
        """Used, cached and empty blocks of the pool now."""
        batches = [span.edges for span in self.spans]
        return memory_over_time(batches, self.num_blocks)[-1] if batches else MemoryUse(0, 0, self.num_blocks - 1)

    def would_find(self, prompt: Sequence[int]) -> int:
        """Return the hit of this prompt now, in tokens. The state is unchanged."""
        manager = self.kv.manager
        return manager.get_computed_blocks(manager.new_request("asks", prompt))[1]

    def admit(self, tokens: str) -> str:
        """Admit a request with a prompt like `0..15 100..103`. Return a sentence with its hit and its new blocks."""
        parts = tokens.split()
        if not parts or not all(re.fullmatch(r"[0-9]{1,9}(\.\.[0-9]{1,9})?", part) for part in parts):
            return f"A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: {tokens}"
        if not 0 < _num_tokens(tokens) <= _MAX_PROMPT_TOKENS:
            return f"A prompt here has 1 to {_MAX_PROMPT_TOKENS} tokens; this one has {_num_tokens(tokens)}."
        self._send_stranger_away()
        name = _letter(self._num_admitted)
        said = self._admit(name, parse_tokens(tokens))
        self._num_admitted += name in self.running  # who is refused comes again, under the same name
        return said

    def finish(self, name: str) -> str:
        """End a request, and return a sentence with its freed blocks."""
        if name not in self.running:
            return f"{name} is not running." if name else "No request is running: admit one first."
        self._send_stranger_away()
        self.kv.free(self._running.pop(name))
        # There is always one: the last token is computed for each request, so its last block is its own.
        return self._tell(f"{name} is done. Free now, in this order: {id_runs(self._last_ids(EdgeKind.FREED))}.")

    def pressure(self, num_blocks: int) -> str:
        """Admit a request of `num_blocks` blocks of unknown tokens, and return a sentence with the evicted blocks.

        It ends at the next press. Until then the figure shows the evictions.
        """
        self._send_stranger_away()
        self._num_strangers += 1
        first = _FIRST_STRANGE_TOKEN * self._num_strangers
        tokens = tuple(range(first, first + num_blocks * self.block_size))
        return self._admit(f"stranger {self._num_strangers}", tokens)

    def _send_stranger_away(self) -> None:
        name = f"stranger {self._num_strangers}"
        if name in self._running:
            self.kv.free(self._running.pop(name))
            self._tell(f"{name} ends. No prompt will ever hit its blocks, but the cache cannot know that.")

    def _admit(self, name: str, prompt: tuple[int, ...]) -> str:
        request = self.kv.manager.new_request(name, prompt)
        num_free = self.kv.manager.block_pool.num_free_blocks
        num_hits = prefill(self.kv, request)
        if num_hits is None:
            needed = -(-len(prompt) // self.block_size)
            why = f"it needs {needed} blocks, and {num_free} are free"
            return self._tell(f"{name} is refused: {why}. Nothing has changed.")
        self._running[name] = request
        if not name.startswith("stranger"):
            self.admitted.append(Admitted(name, prompt, num_hits))
        new = self._last_ids(EdgeKind.ALLOCATED)
        evicted = self._last_ids(EdgeKind.EVICTED)
        said = f"{name}: {num_hits} of {len(prompt)} tokens were found; new blocks: {id_runs(new)}."
        price = f"Evicted for it: {id_runs(evicted)}." if evicted else "Nothing had to be evicted."
        return self._tell(f"{said} {price}")

    def _tell(self, sentence: str) -> str:
        self.told.append(sentence)
        return sentence

    def _last_ids(self, kind: EdgeKind) -> list[int]:
        """Return the blocks with such an event in the last call."""
        return [edge.block_id for edge in self.spans[-1].edges if edge.kind is kind]


def told(*presses: str, num_blocks: int = 11, block_size: int = 4) -> str:
    """Return the messages of a new cache for these presses, one per line, then its memory and its hits.

    A press is written like "admit 0..15 100..103", "finish A" or "pressure 3".
    """
    cache = LiveCache(num_blocks, block_size)
    lines = []
    for press in presses:
        verb, _, what = press.partition(" ")
        if verb == "pressure":
            lines.append(cache.pressure(int(what)))
        else:
            lines.append(cache.admit(what) if verb == "admit" else cache.finish(what))
    used, cached, empty = cache.memory
    lines.append(f"{used} blocks used, {cached} cached, {empty} empty. Found so far: {cache.found}.")
    return "\n".join(lines)


def found_in_turn(prompts: Sequence[str], block_size: int = 4) -> str:
    """Return the hit tokens of each prompt, run in this order, and their sum."""
    sizes = [-(-_num_tokens(prompt) // block_size) for prompt in prompts]
    cache = LiveCache(1 + sum(sizes), block_size)
    for prompt in prompts:
        cache.admit(prompt)
    found = [str(one.num_hits) for one in cache.admitted]
    shown = [*found[:3], "...", found[-1]] if len(found) > 5 else found
    return f"found by each, in turn: {', '.join(shown)}\nby all of them together: {cache.found}"


def _num_tokens(tokens: str) -> int:
    """Return the number of tokens in the text, without building the list."""
    ends = [part.partition("..") for part in tokens.split()]
    return sum(max(0, int(last or first) - int(first) + 1) for first, _, last in ends)


def _letter(index: int) -> str:
    """Return A, B, ..., Z, A2, B2, ..."""
    round_, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(round_ + 1) if round_ else "")
