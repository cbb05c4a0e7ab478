"""The requests of a workload with a model, from a seed: when each arrives, and which have ended. Imports no torch."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SYSTEM = "You answer questions about a cache. Name the block, name the request that holds it, and be short. "
QUESTIONS = (
    "Which block is free?",
    "Who holds block three?",
    "When is a block evicted?",
    "Why does a request wait?",
    "What is a prefix?",
    "How many tokens fit?",
    "Which block is next?",
    "What does the scheduler count?",
)
REPLIES = (" And then?", " Why is that so?", " Who else holds it?", " Say it again, with numbers.")
_DOCUMENT = (
    "A block has a number, a count of references and a hash. The pool has a queue of free blocks. A request has a "
    "table of blocks. A prompt that begins like another one shares its blocks. "
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the workload."""

    request_id: str
    arrives: int
    """The step before which it arrives. A reply arrives later, if the text that it follows is unfinished then."""
    text: str
    max_tokens: int
    follows: str = ""
    """The request whose prompt and answer this text continues."""
    n: int = 1
    """Number of samples: those after the first are forked from it."""
    leaves: int | None = None
    """The step before which its client leaves."""


def arrivals(seed: int, forks: bool = False) -> list[Arrival]:
    """Return the requests in the order of their arrival.

    Single questions and conversations of three turns begin with the same system text. One prompt takes many steps,
    and two clients leave. `forks`: two more requests have several samples.
    """
    rng = random.Random(seed)
    found = [
        Arrival(f"q{number}", rng.randrange(40), SYSTEM + rng.choice(QUESTIONS), rng.randrange(6, 40))
        for number in range(20)
    ]
    for talk in range(5):
        name, first = f"talk{talk}.", rng.randrange(40)
        found.append(Arrival(f"{name}1", first, f"{SYSTEM}{rng.choice(QUESTIONS)}", rng.randrange(8, 16)))
        for turn in (2, 3):
            reply = Arrival(f"{name}{turn}", first, rng.choice(REPLIES), rng.randrange(6, 12), f"{name}{turn - 1}")
            found.append(reply)
    found.append(Arrival("long", 12, _DOCUMENT * 5, 8))
    for number in range(2 if forks else 0):
        found.append(Arrival(f"fork{number}", rng.randrange(50), SYSTEM + QUESTIONS[number], 14, n=3))
    for number in range(2):
        arrives = rng.randrange(10, 40)
        found.append(
            Arrival(f"left{number}", arrives, SYSTEM + REPLIES[number], 40, leaves=arrives + rng.randrange(4, 9))
        )
    return sorted(found, key=lambda arrival: arrival.arrives)


class Arrivals:
    """The requests of a run: those that are due, those that are unfinished, and the texts so far."""

    def __init__(self, due: Sequence[Arrival]) -> None:
        self.texts: dict[str, str] = {}
        """Prompt and answer of each request, of its first sample."""
        self._all, self._due = due, list(due)
        self._unfinished: dict[str, int] = {}
        """The number of samples of each request that have not ended."""

    @property
    def are_due(self) -> bool:
        """Whether a request has not arrived yet."""
        return bool(self._due)

    def arriving(self, number: int) -> Iterator[Arrival]:
        """Yield the requests that arrive before this step. Their prompts are in `texts`."""
        for arrival in list(self._due):
            has_ended = arrival.follows in self.texts and arrival.follows not in self._unfinished
            if arrival.arrives > number or (arrival.follows and not has_ended):
                continue
            self._due.remove(arrival)
            self.texts[arrival.request_id] = self.texts.get(arrival.follows, "") + arrival.text
            self._unfinished[arrival.request_id] = arrival.n
            yield arrival

    def leaving(self, number: int) -> list[str]:
        """Return the requests whose clients leave before this step."""
        names = [arrival.request_id for arrival in self._all if arrival.leaves == number]
        for name in names:
            self._unfinished.pop(name, None)
        return names

    def say(self, request_id: str, new_text: str) -> None:
        """Add to the answer of a request's first sample."""
        self.texts[request_id] += new_text

    def sample_ended(self, request_id: str) -> None:
        """Count a sample of a request as ended."""
        self._unfinished[request_id] -= 1
        if not self._unfinished[request_id]:
            del self._unfinished[request_id]
