"""A rush hour without a scheduler: lab-05's `prefill` admits prompts, and requests end at random. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mini_kv.core.errors import InvalidTokenError
from mini_kv.core.request import Request
from mini_kv.course.finale.dice_hour import NAMES, DiceHour, DiceRush
from mini_kv.course.finale.steps import Step
from mini_kv.course.given import faulty_admissions
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.events.traced_manager import TracedKVCacheManager

NUM_STEPS = 60
FORKS = 0.4
"""The share of steps without a cache in which a request is forked, if one runs and a name is free."""


@dataclass(frozen=True, slots=True)
class PrefillHour(DiceHour):
    """One short hour without a scheduler. Without a cache, requests share blocks because they are forked."""

    def rush(self, own: OwnParts) -> "PrefillRush":
        """Return a cache with these parts."""
        return PrefillRush(self, own)


class NotingManager(TracedKVCacheManager):
    """Also notes the last request that was made: after a refusal the learner's code returns none."""

    last_request: Request

    def new_request(self, *args: Any, **options: Any) -> Request:
        """Return a new request."""
        self.last_request = self.manager.new_request(*args, **options)
        return self.last_request


class PrefillRush(DiceRush):
    """One hour on one cache. In each step a prompt is admitted or refused, or a request ends or is forked."""

    traced = NotingManager
    kv: NotingManager

    def steps(self) -> Iterator[Step]:
        """Yield the steps."""
        running: dict[str, Request] = {}
        for number in range(1, NUM_STEPS + 1):
            lines = list(self.end_or_admit(running)) if number > 1 else []  # step 1: no request yet
            hit_rate = (self.own.hit_rate or faulty_admissions.cache_hit_rate)(self.kv)
            ref_counts = self.own.ref_counts or faulty_admissions.ref_counts
            lines += [f"{name}: references {ref_counts(self.kv, each)}" for name, each in running.items()]
            yield self.step_made(number, messages=lines, counters={"hit rate": hit_rate})

    def end_or_admit(self, running: dict[str, Request]) -> Iterator[str]:
        """End a request or admit a prompt under a name, and yield a line about it."""
        name = self.chance.choice(NAMES)
        if name in running:
            self.kv.free(running.pop(name))
            yield f"{name}: ended"
            return
        if not self.hour.caching and running and self.chance.random() < FORKS:
            yield self.fork(running, self.chance.choice(sorted(running)), name)
            return
        token_ids = list(self.prompt().token_ids)
        if self.chance.random() < 0.05:
            token_ids[-1] = -1  # not a token
        try:
            admitted = self.admit(token_ids, name)
        except InvalidTokenError:
            yield f"{name}: invalid"
            return
        if admitted is None:
            yield f"{name}: refused, computed {self.kv.last_request.num_computed_tokens}"
            return
        running[name], num_cached = admitted
        yield f"{name}: found {num_cached}, computed {running[name].num_computed_tokens}"

    def fork(self, running: dict[str, Request], parent: str, name: str) -> str:
        """Fork a running request and give the child's next token a slot. Return the line about it."""
        child = self.kv.new_request(name, [*running[parent].token_ids, self._token(self.chance)])
        child.num_computed_tokens = running[parent].num_computed_tokens
        self.kv.fork(running[parent], child)
        if self.kv.allocate_slots(child, 1) is None:
            self.kv.free(child)
            return f"{name}: forked from {parent}, refused"
        copies = self.kv.take_kv_cache_block_copies()
        self.kv.finish_kv_cache_block_copies()
        child.num_computed_tokens += 1
        running[name] = child
        return f"{name}: forked from {parent}, copied {copies}"

    def admit(self, token_ids: list[int], name: str) -> tuple[Request, int] | None:
        """Admit a prompt as the learner does, or as mini_kv does."""
        return (self.own.admit or faulty_admissions.prefill)(self.kv, token_ids, name)
