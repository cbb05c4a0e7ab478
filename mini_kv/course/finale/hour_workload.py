"""The requests of the workload with a model, and dice in place of the model. Imports no torch.

What a request asks and what it is answered do not depend on the engine. So engines that have less can run the same
requests, and their numbers can be compared.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mini_kv.core.request import Request
from mini_kv.core.sched.admission import Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.finale.arrivals import Arrival, Arrivals, arrivals
from mini_kv.course.finale.random_requests import TENANTS
from mini_kv.course.finale.random_workload import RandomEngine, RandomWorkload, Sizes
from mini_kv.course.finale.steps import Step
from mini_kv.course.labkit.learner_parts import OwnParts

LONGEST = 234
"""Tokens of the longest request, prompt and answer."""
WORD = re.compile(r"\w+|[^\w\s]")
"""A token."""


@dataclass(frozen=True, slots=True)
class HourWorkload(RandomWorkload):
    """Requests from a seed, in a pool that is short."""

    max_num_seqs: int = 12

    def engine(self, own: OwnParts) -> "HourEngine":
        """Return a scheduler and a cache with these parts."""
        return HourEngine(self, own)

    def sizes(self) -> Sizes:
        """Return the sizes of the workload with a model."""
        return Sizes(
            block_size=8,
            num_blocks=43,
            max_tokens=LONGEST,
            limits=SchedulerConfig(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=48),
            admission=Greedy(),
            arrivals=(0,),
            longest_answer=LONGEST,
            mixed=0,
            has_images=False,
            losses=0,
            tenants=TENANTS[0],
            element_bytes=2,
        )

    def others(self) -> "dict[str, HourWorkload]":
        """Return the same requests on engines that have less."""
        sizes = self.sizes()
        rows = sizes.num_blocks * sizes.block_size // sizes.max_tokens
        return {
            "no prefix caching": replace(self, caching=False),
            "a row per request": replace(self, caching=False, max_num_seqs=max(1, rows)),
            "one at a time": replace(self, max_num_seqs=1),
        }


class HourEngine(RandomEngine):
    """A scheduler and a cache that run the hour's requests."""

    departures = 0.0

    def __init__(self, workload: HourWorkload, own: OwnParts) -> None:
        """Build scheduler and cache."""
        super().__init__(workload, own)
        self.arrivals = Arrivals(arrivals(workload.seed))
        texts = " ".join(arrival.text for arrival in arrivals(workload.seed))
        self._words = sorted(set(WORD.findall(texts)))

    def steps(self) -> Iterator[Step]:
        """Yield the steps until the last answer is complete."""
        while self.arrivals.are_due or self.scheduler.has_unfinished_requests:
            self.number += 1
            for arrival in self.arrivals.arriving(self.number):
                self._add(arrival, self.arrivals.texts[arrival.request_id])
            self.scheduler.finish_requests(self.arrivals.leaving(self.number))
            step = self._step()
            for name, token_ids in step.token_ids.items():
                self.arrivals.say(name, "".join(f" {self._words[token]}" for token in token_ids))
                if name not in self.scheduler.requests:
                    self.arrivals.sample_ended(name)
            yield step

    def _add(self, arrival: Arrival, text: str) -> None:
        token_ids = [self._words.index(word) for word in WORD.findall(text)]
        request = self.kv.new_request(arrival.request_id, token_ids)
        self.scheduler.add_request(request, max_tokens=arrival.max_tokens)

    def _next_tokens(self, request: Request, count: int) -> list[int]:
        """Return the next words of a request. They follow from its last two."""
        tokens = list(request.token_ids[-2:])
        for _ in range(count):
            dice = random.Random(f"{self.workload.seed} {tokens[-2:]}")
            tokens.append(dice.randrange(len(self._words)))
        return tokens[-count:]
