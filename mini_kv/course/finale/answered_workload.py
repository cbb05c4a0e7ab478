"""Prompts through a cache that speaks the protocol of lab-17, beside the engine's own cache. Imports no torch.

A random prompt is admitted, a request gets its next token, or a request ends. Sizes, tokens and order follow from a
seed. After each step the tokens that were found, the tables, the free queue and the hashes are compared.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.finale.steps import Step
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.story.frame import BlockView, Frame, frame_of

NUM_STEPS = 80


class Cache(Protocol):
    """What a step needs of a cache."""

    def admit(self, name: str, token_ids: list[int]) -> int | None:
        """Return the tokens that a new request found, or `None` if it is refused."""

    def decode(self, name: str, token_id: int) -> bool:
        """Give the request's next token a slot. Return whether there was one."""

    def end(self, name: str) -> None:
        """Free the request."""

    def frame(self) -> Frame:
        """Return what can be seen of the cache."""


class EngineCache:
    """The engine's own cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size))
        self.manager = KVCacheManager(KVCacheConfig(num_blocks, (group,)))
        self.requests: dict[str, Request] = {}

    def admit(self, name: str, token_ids: list[int]) -> int | None:
        """As `Cache.admit`."""
        request = self.manager.new_request(name, token_ids)
        hit, num_hit = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(token_ids) - num_hit, num_hit, hit) is None:
            return None
        request.num_computed_tokens = len(token_ids)
        self.requests[name] = request
        return num_hit

    def decode(self, name: str, token_id: int) -> bool:
        """As `Cache.decode`."""
        request = self.requests[name]
        request.append_output_token_ids(token_id)
        granted = self.manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += granted
        return granted

    def end(self, name: str) -> None:
        """As `Cache.end`."""
        self.manager.free(self.requests.pop(name))

    def frame(self) -> Frame:
        """As `Cache.frame`."""
        return frame_of(self.manager)


class AnsweringCache:
    """The learner's cache: a function that gets a message and returns the reply."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]], num_blocks: int, block_size: int) -> None:
        self._answer = answer
        group = {"kind": "full", "block_size": block_size}
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "enable_caching": True}
        self._ask("start", settings={**sizes, "groups": [group], "needs": []})
        self._num_tokens: dict[str, int] = {}

    def _ask(self, call: str, **members: Any) -> dict[str, Any]:
        self._reply = self._answer({"call": call, **members})
        if "result" not in self._reply:
            raise ValueError(f"the reply to {call} is {self._reply}: the finale needs all six messages of lab-17")
        result: dict[str, Any] = self._reply["result"]
        return result

    def admit(self, name: str, token_ids: list[int]) -> int | None:
        """As `Cache.admit`."""
        self._ask("new", request=name, tokens=token_ids, salt=None, lora=None, images=[])
        hit = self._ask("lookup", request=name)["hit"]
        self._num_tokens[name] = len(token_ids)
        return hit if self._allocate(name, 0, hit, len(token_ids) - hit, name) else None

    def _allocate(self, name: str, computed: int, hit: int, num_tokens: int, hit_of: str | None) -> bool:
        slots = {"computed": computed, "hit": hit, "tokens": num_tokens, "hit_of": hit_of}
        return bool(self._ask("allocate", request=name, **slots)["granted"])

    def decode(self, name: str, token_id: int) -> bool:
        """As `Cache.decode`."""
        self._ask("append", request=name, tokens=[token_id])
        self._num_tokens[name] += 1
        return self._allocate(name, self._num_tokens[name] - 1, 0, 1, None)

    def end(self, name: str) -> None:
        """As `Cache.end`."""
        self._ask("free", request=name)

    def frame(self) -> Frame:
        """As `Cache.frame`. The number of tables that a block is in follows from the tables."""
        tables = {name: ids for name, ids in self._reply["tables"].items() if any(ids)}
        used = [block_id for ids in tables.values() for table in ids for block_id in table]
        hashes = self._reply["hashes"]
        blocks = tuple(BlockView(number, used.count(number), its_hash) for number, its_hash in enumerate(hashes))
        return Frame(blocks, tables, [*self._reply["free"]])


@dataclass(frozen=True, slots=True)
class AnsweredWorkload:
    """Prompts of a seed."""

    seed: int

    def engine(self, own: OwnParts) -> "PromptsEngine":
        """Return an engine with the learner's cache, or with the engine's own."""
        dice = random.Random(f"sizes of prompts {self.seed}")
        sizes = dice.randrange(6, 20), dice.choice((1, 2, 3, 4, 4))
        cache = EngineCache(*sizes) if own.answer is None else AnsweringCache(own.answer, *sizes)
        return PromptsEngine(cache, sizes[1], random.Random(self.seed))


class PromptsEngine:
    """Admits prompts, gives requests tokens, and ends them, one of these in a step."""

    def __init__(self, cache: Cache, block_size: int, chance: random.Random) -> None:
        self.cache, self.block_size, self.chance = cache, block_size, chance
        self.running: list[str] = []

    def steps(self) -> Iterator[Step]:
        """Yield the steps."""
        for number in range(1, NUM_STEPS + 1):
            line, found = self._step(number)
            yield Step(number, found=found, messages=[line], counters=None, frame=self.cache.frame())

    def _step(self, number: int) -> tuple[str, dict[str, int]]:
        """Make a step. Return it in words, and what a new request found."""
        if self.running and self.chance.random() < 0.25:
            name = self.running.pop(self.chance.randrange(len(self.running)))
            self.cache.end(name)
            return f"{name}: ended", {}
        if self.running and self.chance.random() < 0.5:
            name = self.chance.choice(self.running)
            granted = self.cache.decode(name, self.chance.randrange(3))
            if not granted:
                self.running.remove(name)
                self.cache.end(name)
            return f"{name}: a token, {'granted' if granted else 'refused and ended'}", {}
        name = f"R{number}"
        num_hit = self.cache.admit(name, self._prompt())
        if num_hit is None:
            return f"{name}: refused", {}
        self.running.append(name)
        return f"{name}: found {num_hit}", {name: num_hit}

    def _prompt(self) -> list[int]:
        """Return a prompt that begins like one of three texts and ends with a few tokens of its own."""
        text = 100 * self.chance.randrange(3)
        shared = self.chance.randrange(1, 5 * self.block_size)
        own = [self.chance.randrange(3) for _ in range(self.chance.randrange(self.block_size + 1))]
        return [*range(text, text + shared), *own]

    def story(self) -> dict[str, Any]:
        """Return nothing: the film shows another act."""
        return {}
