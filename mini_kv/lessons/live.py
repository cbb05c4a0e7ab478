"""A small cache under the reader's hands: the real engine, told what to do one press of a button at a time.

    cache = LiveCache(num_blocks=11, block_size=4)
    cache.admit("0..15 100..103")      # "A holds 5 blocks. ..."
    cache.finish("A")
    cache.pressure(3)                  # a stranger comes, needs 3 blocks, and leaves

Every call answers with a sentence, also when the cache refuses. `LivePlayer` in `notebook` puts the buttons on it.
"""

import re

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.trace.edge import EdgeKind
from mini_kv.trace.metrics import MemoryUse, memory_over_time
from mini_kv.trace.recorder import Recorder
from mini_kv.trace.scenario import parse_tokens, prefill
from mini_kv.trace.story import id_runs
from mini_kv.trace.traced_manager import Span, TracedKVCacheManager

_FIRST_STRANGE_TOKEN = 1_000_000
"""Tokens from here on belong to strangers: no prompt of the reader's has them."""
_MAX_PROMPT_TOKENS = 400
"""More would not fit on a screen."""


class LiveCache:
    """A cache whose calls are recorded, its running requests, and a letter for the next one."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Build the pool; `num_blocks` counts the null block."""
        recorder = Recorder()
        manager = KVCacheManager.for_full_attention(num_blocks, block_size, new_block=recorder.new_block)
        self.kv = TracedKVCacheManager(manager, recorder, snapshots=True)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.told: list[str] = []
        """A sentence for each step: an admission, granted or refused, or a request that ends."""
        self._running: dict[str, Request] = {}
        self._num_admitted = 0
        self._num_strangers = 0

    @property
    def spans(self) -> list[Span]:
        """Everything that was done to the cache, call by call."""
        return self.kv.spans

    @property
    def running(self) -> list[str]:
        """The requests that hold blocks, in order of admission."""
        return list(self._running)

    @property
    def memory(self) -> MemoryUse:
        """Used, cached and empty blocks of the pool now."""
        batches = [span.edges for span in self.spans]
        return memory_over_time(batches, self.num_blocks)[-1] if batches else MemoryUse(0, 0, self.num_blocks - 1)

    def admit(self, tokens: str) -> str:
        """Admit a request with this prompt, written like `0..15 100..103`, and say what it found and what it cost."""
        parts = tokens.split()
        if not parts or not all(re.fullmatch(r"[0-9]{1,9}(\.\.[0-9]{1,9})?", part) for part in parts):
            return f"A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: {tokens}"
        if not 0 < _num_tokens(tokens) <= _MAX_PROMPT_TOKENS:
            return f"A prompt here has 1 to {_MAX_PROMPT_TOKENS} tokens; this one has {_num_tokens(tokens)}."
        name = _letter(self._num_admitted)
        said = self._admit(name, parse_tokens(tokens))
        self._num_admitted += name in self._running  # who is refused comes again, under the same name
        return said

    def finish(self, name: str) -> str:
        """End a request, and say which of its blocks became free."""
        if name not in self._running:
            return f"{name} is not running." if name else "No request is running: admit one first."
        self.kv.free(self._running.pop(name))
        # There is always one: the last token is computed for each request, so its last block is its own.
        return self._tell(f"{name} is done. Free now, in this order: {id_runs(self._last_ids(EdgeKind.FREED))}.")

    def pressure(self, num_blocks: int) -> str:
        """Admit and end a request of `num_blocks` blocks of unknown tokens; say which blocks were evicted for it."""
        self._num_strangers += 1
        name = f"stranger {self._num_strangers}"
        size = num_blocks * self.block_size
        first = _FIRST_STRANGE_TOKEN * self._num_strangers
        said = self._admit(name, tuple(range(first, first + size)))
        if name in self._running:
            self.kv.free(self._running.pop(name))
            self._tell(f"{name} leaves again. No prompt will ever hit its blocks, but the cache cannot know that.")
        return said

    def _admit(self, name: str, prompt: tuple[int, ...]) -> str:
        request = self.kv.manager.new_request(name, prompt)
        num_free = self.kv.manager.block_pool.num_free_blocks
        num_hits = prefill(self.kv, request)
        if num_hits is None:
            needed = -(-len(prompt) // self.block_size)
            why = f"it needs {needed} blocks, and {num_free} are free"
            return self._tell(f"{name} is refused: {why}. Nothing has changed.")
        self._running[name] = request
        new = self._last_ids(EdgeKind.ALLOCATED)
        evicted = self._last_ids(EdgeKind.EVICTED)
        said = f"{name}: {num_hits} of {len(prompt)} tokens were found; new blocks: {id_runs(new)}."
        price = f"Forgotten for it: {id_runs(evicted)}." if evicted else "Nothing had to be forgotten."
        return self._tell(f"{said} {price}")

    def _tell(self, sentence: str) -> str:
        self.told.append(sentence)
        return sentence

    def _last_ids(self, kind: EdgeKind) -> list[int]:
        """Return the blocks to which this happened in the last call."""
        return [edge.block_id for edge in self.spans[-1].edges if edge.kind is kind]


def _num_tokens(tokens: str) -> int:
    """Return how many tokens the text lists, without making the list."""
    ends = [part.partition("..") for part in tokens.split()]
    return sum(max(0, int(last or first) - int(first) + 1) for first, _, last in ends)


def _letter(index: int) -> str:
    """Return A, B, ..., Z, A2, B2, ..."""
    round_, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(round_ + 1) if round_ else "")
