"""Random tests of lab-12: random caches, lives and models, each compared with a simple model.

What is right follows from the definitions: tokens that are read are counted one by one, every end of a hit is tried,
tables are plain lists, and layers are dealt out like cards.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_interface import SlidingWindowSpec
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import COMES, Step, cached_blocks, check_life, free_queue, random_life, seeds
from mini_kv.course.labkit.naive import NaiveCache

from .helpers import (
    FIND,
    LETTERS,
    SKIP,
    cache,
    full,
    grouped,
    hit_of,
    hold,
    layers,
    make_group,
    meet,
    remove,
    state,
    table_of,
    window,
    with_cached,
    with_groups,
    with_tables,
)

# Random caches: what a token reads is counted token by token, and every end is tried --------------------------------


class Kind(NamedTuple):
    """A group as the definition has it: a token reads itself and this many tokens before it."""

    told: str
    spec: Any
    num_before: int

    def places(self, end: int) -> set[int]:
        """Return the places of the blocks that the token behind the first `end` blocks reads."""
        size = self.spec.block_size
        return {token // size for token in range(end * size) if end * size - token <= self.num_before}


def random_kinds(rng: random.Random, block_size: int, *, is_one_window: bool) -> list[Kind]:
    """Return one window, or up to six groups: windows, full attention, a state."""
    sizes = [rng.randint(1, 3 * block_size + 2) for _ in range(1 if is_one_window else rng.choice((1, 2, 3, 3)))]
    kinds = [Kind(f"window {size}", window(size, block_size), size - 1) for size in sizes]
    if not is_one_window:
        kinds += [Kind("full", full(block_size), 10_000)] * rng.choice((1, 1, 2))
        kinds += [Kind("state", state(block_size), 1)] * rng.choice((0, 0, 1))
    return rng.sample(kinds, len(kinds))


def compare_random_caches(lab: LabUnderTest, learners: str) -> None:
    """Try forty random caches. Drop cached blocks of the first that goes wrong, as long as it still does."""
    for seed in seeds(40):
        rng = random.Random(seed)
        size, prompt, density = (
            rng.choice((1, 2, 3, 4)),
            LETTERS[: rng.randint(1, 9)],
            rng.choice((0.5, 0.65, 0.8, 0.95)),
        )
        kinds = random_kinds(rng, size, is_one_window=learners == FIND)
        limit = rng.randint(0, size * (len(prompt) + 1))
        cached = [f"{group}{letter}" for group in range(len(kinds)) for letter in prompt if rng.random() < density]
        told = ", ".join(f"group {number} {kind.told}" for number, kind in enumerate(kinds))
        where = f"at most {limit} tokens of {prompt}, blocks of {size}, seed {seed}: {told}; cached in group 0, 1, ..."
        check_life(lab, partial(ask, lab, kinds, prompt, limit), cached, where)


def ask(lab: LabUnderTest, kinds: list[Kind], prompt: str, limit: int, cached: list[str]) -> None:
    """Compare the hit of one group, or of several together, with the last end at which all that is read is cached."""
    size = kinds[0].spec.block_size
    read = [
        [f"{group}{prompt[place]}" for group, kind in enumerate(kinds) for place in kind.places(end)]
        for end in range(min(limit // size, len(prompt)) + 1)
    ]
    end = max(end for end, needed in enumerate(read) if set(needed) <= set(cached))
    want = [
        [10 * group + place + 1 if place in kind.places(end) else 0 for place in range(end)]
        for group, kind in enumerate(kinds)
    ]
    drawn = ["".join(a if f"{group}{a}" in cached else " " for a in prompt) for group in range(len(kinds))]
    groups = [(kind.spec, letters) for kind, letters in zip(kinds, drawn, strict=True)]
    if len(kinds) == 1:
        lab.expect("hit", want[0], hit_of(with_cached(lab, *groups[0]), len(prompt), limit))
    else:
        got = meet(lab, with_groups(lab, *groups), len(prompt), limit)
        lab.expect("hits of the groups, and tokens", (want, end * size), got)


# Random lives: requests come, begin like others, and their windows move on ------------------------------------------

COMPUTES = "computes"


class NaiveWindows(NaiveCache):
    """A naive cache whose requests give back what lies left of their windows."""

    def move_on(self, name: str, num_computed: int, sliding_window: int) -> None:
        """Replace blocks that token `num_computed` does not read by null blocks. Free those in no table."""
        table, gone = self.tables[name], []
        for place in reversed(range(len(table))):
            if (place + 1) * self.block_size <= num_computed - sliding_window + 1:
                gone.append(table[place])
                table[place] = 0
        self.make_free([block for block in gone if block and not self.is_held(block)])


def play(lab: LabUnderTest, spec: SlidingWindowSpec, life: list[Step]) -> None:
    """Play the steps on a group with the learner's `remove_skipped_blocks` and on the model."""
    group, model = with_tables(lab, spec, 100), NaiveWindows(100, spec.block_size)
    computed: dict[str, int] = {}
    for step in life:
        name = step.name
        if step.verb == COMES:
            new = model.allocate(name, step.tokens, model.hit(step.tokens)) or []
            model.evict([] if step.options["cached"] else new)
            group.block_pool.evict_blocks(new)  # memory that is used anew
            hold(group, name, model.tables[name])
            cache(group, [block for block in model.tables[name] if block in model.cached])
            computed[name] = 0
        elif name in model.tables:
            num_slots = len(model.tables[name]) * spec.block_size
            computed[name] = min(computed[name] + step.options["tokens"], num_slots)
            remove(lab, group, name, computed[name])
            model.move_on(name, computed[name], spec.sliding_window)
        for other, want in model.tables.items():
            lab.expect(f"table of {other}", want, table_of(group, other))
        lab.expect("free queue", model.free_queue, free_queue(group))
        lab.expect("cached blocks", sorted(model.cached), cached_blocks(group))


def compare_lives(lab: LabUnderTest) -> None:
    """Compare forty lives of tables that share blocks with the model, step by step."""
    for seed in seeds(40):
        rng = random.Random(seed)
        spec = window(rng.randint(1, 10), rng.choice((1, 3, 4)))
        options: dict[str, Any] = {
            COMES: {"cached": (True, True, False)},
            COMPUTES: {"tokens": (1, 2, spec.block_size, 12)},
        }
        life = random_life(rng, 18, {COMES: 0.25, COMPUTES: 0.75}, max_tail=12, options=options)
        where = f"blocks of {spec.block_size}, a window of {spec.sliding_window}, seed {seed}"
        check_life(lab, partial(play, lab, spec), life, where)


# Random windows and models ------------------------------------------------------------------------------------------


def compare_windows(lab: LabUnderTest) -> None:
    """Compare forty random windows with a count of the tokens that are read."""
    for seed in seeds(40):
        rng = random.Random(seed)
        size, num_computed = rng.randint(1, 40), rng.randint(0, 60)
        group = make_group(lab, SKIP, window(size, rng.choice((1, 3, 4, 16))), BlockPool(4))
        want = sum(num_computed - token >= size for token in range(num_computed))  # the next one is num_computed
        what = f"tokens skipped with {num_computed} computed, in a window of {size} (seed {seed})"
        lab.expect(what, want, group.get_num_skipped_tokens(num_computed))


def compare_models(lab: LabUnderTest) -> None:
    """Compare the groups of forty random models with layers that are dealt out one by one."""
    for seed in seeds(40):
        rng = random.Random(seed)
        kinds = rng.sample("fwsv", rng.randint(1, 4))
        order = [kind for kind in kinds for _ in range(rng.choice((1, 2, 3, 10, 12, 13, 15, 20, 31)))]
        rng.shuffle(order)
        lab.expect(f"groups of {''.join(order)} (seed {seed})", dealt(order), grouped(lab, layers(order)))


def dealt(order: Sequence[str]) -> list[list[str]]:
    """Return the groups of a model with these layers, dealt one layer at a time."""
    kinds = sorted(set(order), key=order.index)
    counts = sorted(order.count(kind) for kind in kinds)
    size = counts[-1] if 2 * counts[-1] < 3 * counts[0] else counts[0]
    groups = []
    for kind in kinds:
        names = [name for name in layers(order) if name[0] == kind]
        hands: list[list[str]] = [[] for _ in range(-(-len(names) // size))]
        for name in names:
            min(hands, key=len).append(name)  # of several, the first
        groups += hands
    return groups
