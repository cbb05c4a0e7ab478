"""Makes a synthetic workload in Mooncake's format: chats that grow, documents, a few system prompts.

    conversation    | system prompt | question |                                        turn 1
                    | system prompt | question | answer | question |                    turn 2, after a while
                    | system prompt | question | answer | question | answer | question |
    document        | system prompt | a long text that comes once |
    repeat          any of these prompts once more, a moment later

So the same kinds of hits occur as in production: many requests share a head, and a chat shares all of its past.
Sizes and times are invented. For conclusions about a real service, replay its own trace.

    python -m mini_kv.tools.traces.synthetic --seed 1 mini_kv/tools/traces/small.jsonl

writes the small trace that the tests and the README use, byte for byte the same with every Python on every
platform. All random numbers are from `random.Random(seed).random()`, which Python guarantees not to change, and
one multiplication makes each an integer.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mini_kv.tools.traces.readers.mooncake import BLOCK_SIZE, TraceRequest, format_request

# Inclusive ranges of what is drawn: tokens, turns, milliseconds.
_SYSTEM_PROMPT_TOKENS = ((1_200, 1_800), (4_000, 5_000), (300, 500), (2_200, 3_000))
_QUESTION_TOKENS = (20, 900)
_ANSWER_TOKENS = (10, 600)
_DOCUMENT_TOKENS = (4_000, 16_000)
_TURNS = (1, 8)
_SESSION_GAP_MS = (0, 8_000)
THINK_MS = (5_000, 60_000)
_DOCUMENTS_PER_SESSION = 0.25
"""Share of the sessions that send one document. The other sessions are conversations."""
_REPEAT_MS = (1_000, 4_000)
_REPEATS_PER_TURN = 0.05
"""Share of the requests that come twice. In Mooncake's `synthetic_trace.jsonl` it is 213 of 3,993."""
_MAX_REQUESTS = 1_000_000


class Segment(NamedTuple):
    """A piece of text that always occurs as a whole. Different segments have different texts."""

    content: int
    length: int
    """Tokens."""


class Turn(NamedTuple):
    """A request whose blocks have no numbers yet."""

    timestamp: int
    prompt: tuple[Segment, ...]
    output_length: int


class Dice:
    """Draws integers, and segments that are all different."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._contents = itertools.count()

    def chance(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()

    def integer(self, bounds: tuple[int, int]) -> int:
        """Return an integer between the bounds, both included."""
        low, high = bounds
        return low + int(self._random.random() * (high - low + 1))

    def segment(self, bounds: tuple[int, int]) -> Segment:
        """Return a text that has not occurred before."""
        return Segment(next(self._contents), self.integer(bounds))


def generate(seed: int, num_requests: int) -> list[TraceRequest]:
    """Return `num_requests` requests in order of arrival. The same seed gives the same trace."""
    dice = Dice(seed)
    system_prompts = [dice.segment(bounds) for bounds in _SYSTEM_PROMPT_TOKENS]
    turns: list[Turn] = []
    start = 0
    while len(turns) < num_requests:
        # The square favours the first ones: a service has one system prompt that nearly all requests use.
        system_prompt = system_prompts[int(dice.chance() ** 2 * len(system_prompts))]
        if dice.chance() < _DOCUMENTS_PER_SESSION:
            document = dice.segment(_DOCUMENT_TOKENS)
            session = [Turn(start, (system_prompt, document), dice.integer(_ANSWER_TOKENS))]
        else:
            session = _conversation(dice, start, system_prompt)
        turns += session + _repeats(dice, session)
        start += dice.integer(_SESSION_GAP_MS)
    turns.sort(key=lambda turn: turn.timestamp)
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    return [
        TraceRequest(turn.timestamp, _length(turn.prompt), turn.output_length, _hash_ids(turn.prompt, known))
        for turn in turns[:num_requests]
    ]


def _conversation(dice: Dice, start: int, system_prompt: Segment) -> list[Turn]:
    """Return the turns of one chat, each prompt the one before, its answer, and a new question."""
    turns = []
    prompt: tuple[Segment, ...] = (system_prompt,)
    timestamp = start
    for _ in range(dice.integer(_TURNS)):
        prompt += (dice.segment(_QUESTION_TOKENS),)
        answer = dice.segment(_ANSWER_TOKENS)
        turns.append(Turn(timestamp, prompt, answer.length))
        prompt += (answer,)
        timestamp += dice.integer(THINK_MS)
    return turns


def _repeats(dice: Dice, session: Sequence[Turn]) -> list[Turn]:
    """Return a few of the turns again, a little later, like the repeats of an impatient client."""
    return [
        turn._replace(timestamp=turn.timestamp + dice.integer(_REPEAT_MS))
        for turn in session
        if dice.chance() < _REPEATS_PER_TURN
    ]


def _hash_ids(prompt: Sequence[Segment], known: dict[tuple[int, tuple[int, ...]], int]) -> tuple[int, ...]:
    """Return a number for each block, equal for equal prefixes. New prefixes are added to `known`.

        prompt      | A ................ | B ............................ |
        blocks      |       0       |       1        |        2      | 3  |
        prefix        (A), 512        (A, B), 1024    (A, B), 1536    (A, B), 1700

    A prefix is the number of the prefix before its last block, and the segments of that block's tokens.
    """
    tokens = [segment.content for segment in prompt for _ in range(segment.length)]
    ids = [-1]
    for start in range(0, len(tokens), BLOCK_SIZE):
        ids.append(known.setdefault((ids[-1], tuple(tokens[start : start + BLOCK_SIZE])), len(known)))
    return tuple(ids[1:])


def _length(prompt: Sequence[Segment]) -> int:
    return sum(segment.length for segment in prompt)


def main(argv: Sequence[str] | None = None) -> int:
    """Write a synthetic trace to a file, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.tools.traces.synthetic", description=main.__doc__)
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=200, help="how many (default: 200)")
    args = parser.parse_args(argv)
    if not 1 <= args.requests <= _MAX_REQUESTS:
        parser.error(
            f"--requests must be at least 1, and at most {_MAX_REQUESTS:,}: a trace holds at least one request"
        )
    lines = [format_request(request) + "\n" for request in generate(args.seed, args.requests)]
    try:
        args.output.write_bytes("".join(lines).encode())  # bytes: the same line ends on every platform
    except (OSError, ValueError) as error:  # Python's words for a NUL in a path are a ValueError
        parser.error(f"cannot write {str(args.output)!r}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
