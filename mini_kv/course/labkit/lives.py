"""Random lives: requests that arrive, run and end, played on a learner's code and compared with `naive`.

A life is a list of steps. Without any one of them the rest is still valid, so a failing life can be shrunk to a few
steps. Below are the views of tables that such comparisons and the labs' stories share.
"""

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.invariants import InvariantViolationError, Violation
from mini_kv.course.labkit import LabTodo
from mini_kv.course.labkit.fixture import InWords, LabFailure, LabUnderTest
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.shrink import shrink

Item = TypeVar("Item")

COMES, LEAVES = "comes with", "leaves"
_STEMS = ((1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1), (2,))
"""Beginnings of the prompts of random requests."""


@dataclass(frozen=True)
class Step:
    """One call for a request, or for the cache if there is no name."""

    verb: str
    name: str = ""
    tokens: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        told = " ".join(filter(None, (self.name, self.verb, "".join(map(str, self.tokens)))))
        return ", ".join([told, *(f"{option} {value}" for option, value in self.options.items() if value)])


def random_life(
    rng: random.Random,
    num_steps: int,
    shares: Mapping[str, float],
    *,
    stems: Sequence[tuple[int, ...]] = _STEMS,
    max_tail: int = 3,
    of_cache: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Sequence[Any]]] = MappingProxyType({}),
) -> list[Step]:
    """Return steps of requests over few tokens, so that requests often share a prefix.

    Args:
        rng: source of all random choices.
        num_steps: number of steps. A step for a request is left out while there is no request.
        shares: verbs with their shares of the steps, including `COMES` and `LEAVES`.
        stems: beginnings to choose from.
        max_tail: most tokens after a request's stem.
        of_cache: verbs without a request.
        options: per verb, the values to choose from for each option.
    """
    life: list[Step] = []
    alive: list[str] = []
    for number in range(num_steps):
        verb = rng.choices(list(shares), list(shares.values()))[0]
        drawn = {option: rng.choice(values) for option, values in options.get(verb, {}).items()}
        if verb in of_cache:
            life.append(Step(verb, options=drawn))
        elif verb == COMES:
            stem = rng.choice(stems)
            tail = rng.choices((1, 2), k=rng.randint(0, max_tail))
            alive.append(f"R{number}")
            life.append(Step(verb, alive[-1], (*stem[: rng.randint(1, len(stem))], *tail), drawn))
        elif alive:
            name = alive.pop(rng.randrange(len(alive))) if verb == LEAVES else rng.choice(alive)
            life.append(Step(verb, name, options=drawn))
    return life


def seeds(count: int) -> list[int]:
    """Return the seeds to try. LAB_SEED=n in the environment is the first."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


def fails(check: Callable[[list[Item]], object], case: list[Item]) -> bool:
    """Return whether the check raises anything but a TODO."""
    try:
        check(case)
    except LabTodo:
        raise
    except Exception:
        return True
    return False


def check_all(check: Callable[[list[Item]], object], cases: Iterable[list[Item]]) -> None:
    """Check the cases. For the first failing one, raise the failure of its shortest failing part."""
    for case in cases:
        if fails(check, case):
            check(shrink(case, partial(fails, check)))


def check_life(lab: LabUnderTest, play: Callable[[list[Item]], object], life: list[Item], where: str) -> None:
    """Play a life. If it fails, play its shortest failing part, and add that part and `where` to the failure."""
    if not fails(play, life):
        return
    shortest = shrink(life, partial(fails, play))
    told = f"{where}: {'; '.join(map(str, shortest))}"
    lab.notes.clear()  # the story is that of the shortest life
    try:
        play(shortest)
    except LabFailure as failure:
        lab.fail(f"{failure.what}, {told}", failure.want, failure.got, failure.why, failure.picture)
    except InvariantViolationError as error:
        violation = error.violation
        raise InvariantViolationError(Violation(violation.invariant_id, f"{violation.message}, {told}")) from None
    except Exception as error:
        lab.fail(f"the last step, {told}", "no exception", error)


@contextmanager
def cause_first(*on_purpose: type[Exception]) -> Iterator[None]:
    """Raise the first exception if another one was raised while it was handled.

    Code that fails half-way leaves a broken state, which debug mode and the recorder then report. An exception that the
    code raises on purpose is not a cause. In that case the broken state is the mistake.
    """
    try:
        yield
    except Exception as error:
        cause = error.__context__
        stumbled = isinstance(error, InvariantViolationError) or isinstance(cause, LabFailure)
        if stumbled and isinstance(cause, Exception) and not isinstance(cause, (InvariantViolationError, *on_purpose)):
            raise cause from None
        raise


def refuses(lab: LabUnderTest, what: str, error: type[Exception], call: Callable[[], object], why: str = "") -> None:
    """Make a call that must raise `error`. Any other outcome is a failure."""
    try:
        result = call()
    except (LabTodo, LabFailure, InvariantViolationError):
        raise
    except error:
        return
    except Exception as other:
        lab.fail(what, f"{error.__name__} raised", other, why)
    got = result if isinstance(result, InWords) else f"{result} returned"
    lab.fail(what, f"{error.__name__} raised", got, why)


def all_different(lab: LabUnderTest, results: Iterable[tuple[str, bytes]], why: str = "") -> None:
    """Fail for the first two of these calls that gave the same bytes. All calls are compared before."""
    first: dict[bytes, tuple[int, str]] = {}
    alike = []
    for number, (call, result) in enumerate(results):
        other, other_call = first.setdefault(result, (number, call))
        if other != number:
            alike.append(f"{other_call}  and  {call}")
    if alike:
        lab.fail(alike[0], "two different results", InWords("the same bytes for both"), why, seen=alike)
    lab.note(f"{len(first)} calls give {len(first)} different results")


# Another process ----------------------------------------------------------------------------------------------------


def in_another_process(lab: LabUnderTest, function: Callable[..., list[bytes]], *words: str) -> list[bytes]:
    """Call a function of a lab's helpers on the learner's code, in a process with another PYTHONHASHSEED.

    The function gets the learner's module and these words.
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join([str(lab.implementation.lab.root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    where = [function.__code__.co_filename, function.__name__, lab.implementation.source]
    done = subprocess.run(
        [sys.executable, "-m", __name__, *where, *words],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        error = InWords(done.stderr.splitlines()[-1])
        lab.fail(f"{' '.join(words) or 'the code'} in another process", "the same bytes", error)
    return [bytes.fromhex(each) for each in json.loads(done.stdout.splitlines()[-1])]


def _in_this_process(file: str, name: str, source: str, *words: str) -> None:
    """Print what the function of this file returns for the learner's code."""
    code = load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    results = getattr(load_file(Path(file)), name)(code, *words)
    print("\n" + json.dumps([each.hex() for each in results]))


# Tables, for a manager or a pool ------------------------------------------------------------------------------------


def ids_of(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """Return the ids of the blocks, as a drawing shows them."""
    return [block.block_id for block in blocks]


def are_blocks(value: object) -> bool:
    """Return whether the value is a list with only blocks."""
    return type(value) is list and all(isinstance(item, KVCacheBlock) for item in value)


def table(kv: Any, name: str) -> list[int]:
    """Return the ids in the request's first block table, or an empty list."""
    return list(kv.get_block_ids(name)[0])


def free_queue(kv: Any) -> list[int]:
    """Return the ids in the free queue, the next to be handed out first."""
    return ids_of(_pool_of(kv).free_block_queue.get_all_free_blocks())


def cached_blocks(kv: Any) -> list[int]:
    """Return the ids of the blocks that have a block hash."""
    return [block.block_id for block in _pool_of(kv).blocks if block.block_hash is not None]


def references(kv: Any, block_ids: Iterable[int]) -> list[int]:
    """Return the `ref_cnt` of each of these blocks."""
    return [_pool_of(kv).blocks[block_id].ref_cnt for block_id in block_ids]


def scramble(kv: Any) -> None:
    """Reorder the free queue of a new cache, so that a block's id does not show its place."""
    queue = _pool_of(kv).free_block_queue
    blocks = queue.popleft_n(queue.num_free_blocks)
    queue.append_n(blocks[1::2] + blocks[::2][::-1])


def _pool_of(kv: Any) -> Any:
    """Return the manager's pool. Return a pool unchanged."""
    return getattr(kv, "block_pool", kv)


if __name__ == "__main__":
    _in_this_process(*sys.argv[1:])
