"""Names for the losses of a waterfall: the causes that an engineer can change.

A cause is named from `_NAMED_FROM` of the prompt tokens on. A smaller loss is less than the difference between the
traffic of two days. Every healthy trace has such losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import NamedTuple

from mini_kv.core.kv_cache_interface import MambaSpec
from mini_kv.tools.traces.curve import Stack
from mini_kv.tools.traces.prompt_hashes import Prompt
from mini_kv.tools.traces.waterfall import SMALL_BLOCK, Waterfall

_NAMED_FROM = 0.03
_LEAST_REQUESTS = 3
"""A cause that was seen in fewer requests may be chance."""
HIDDEN_BY_HASHES = (
    "whether salts, adapters or images keep equal tokens apart",
    "whether a value in the prompt changes, such as a timestamp",
    "whether tools or documents come in another order",
    "what other block sizes would share, and what is shorter than a block",
)
"""Causes that a trace of hashes cannot show: equal content has equal hashes only after an equal prefix."""


@unique
class CauseName(StrEnum):
    """The causes. `mini_kv.story.vllm_source` links each to vLLM's code."""

    TIMESTAMP = "timestamp"
    TOOL_ORDER = "tool-order"
    IMAGE_SIZE = "image-size"
    IMAGE = "image"
    ADAPTER = "adapter"
    SALT = "salt"
    REFUSED = "refused"
    PREEMPTION_STORM = "preemption-storm"
    SHORT_PREFIX = "short-prefix"
    SHORT_BLOCK = "short-block"
    BLOCK_SIZE = "block-size"
    SMALL_POOL = "small-pool"
    STATE_GAP = "state-gap"
    WINDOW_GAP = "window-gap"
    RESET = "reset"


class Cause(NamedTuple):
    """A cause of lost hits."""

    name: CauseName
    tokens: int
    share: float
    """Share of all prompt tokens, 0.0 to 1.0."""
    sentence: str


@dataclass(frozen=True)
class _Rule:
    """The name of a waterfall's row, and a remedy."""

    row: str
    name: CauseName
    sentence: str


_RULES = (
    _Rule(
        "value",
        CauseName.TIMESTAMP,
        "a value that changes (a timestamp, an id) makes prompts differ early: put it last",
    ),
    _Rule("order", CauseName.TOOL_ORDER, "the same tools or documents come in another order: sort them"),
    _Rule("image-size", CauseName.IMAGE_SIZE, "an image comes in another size before equal text: send one size"),
    _Rule("images", CauseName.IMAGE, "different images fill the same placeholders: put common text before them"),
    _Rule("adapters", CauseName.ADAPTER, "equal prompts run with different adapters, which share no KV"),
    _Rule(
        "salts", CauseName.SALT, "equal prompts have different salts (one per user?): give those who may share one salt"
    ),
    _Rule("refused", CauseName.REFUSED, "prompts are larger than the pool"),
    _Rule(
        "preempted",
        CauseName.PREEMPTION_STORM,
        "preempted requests are computed again: admit fewer at once, or more memory",
    ),
)


def find_causes(waterfall: Waterfall, prompts: Sequence[Prompt], observed: Sequence[int] | None = None) -> list[Cause]:
    """Return the causes that are large enough for a name, the most expensive first.

    `prompts` and `observed`: as `make_waterfall` made and took them.
    """
    found = [(rule.name, waterfall.tokens(rule.row), rule.sentence) for rule in _RULES]
    found += _of_the_block(waterfall)
    found.append((CauseName.SMALL_POOL, waterfall.tokens("evicted"), _pool_sentence(waterfall)))
    specs = [group.kv_cache_spec for group in waterfall.setup.groups]
    has_states = any(isinstance(spec, MambaSpec) for spec in specs)
    name = CauseName.STATE_GAP if has_states else CauseName.WINDOW_GAP
    sentence = "full attention has the prefix cached, but another group of layers lacks blocks that it needs there"
    found.append((name, waterfall.tokens("groups") + waterfall.tokens("alignment"), sentence))
    if observed is not None:
        found += _resets(waterfall, prompts, observed)
    total = waterfall.tokens("prompt")
    causes = [
        Cause(name, tokens, tokens / total, text) for name, tokens, text in found if tokens >= _NAMED_FROM * total
    ]
    return sorted(causes, key=lambda cause: -cause.tokens)


def _of_the_block(waterfall: Waterfall) -> list[tuple[CauseName, int, str]]:
    """Return the losses whose cause is the block size: shorter prefixes, and prefixes that end within a block."""
    setup = waterfall.setup
    size = setup.hash_block_size
    shortest = min(size, SMALL_BLOCK)
    short = sum(one.names for one in waterfall.shared if one.names < shortest)
    remedy = "`mini-kv why MODEL` lists flags that shrink them" if setup.has_given_blocks else "choose smaller blocks"
    return [
        (CauseName.SHORT_PREFIX, short, f"common prefixes are shorter than {shortest} tokens: nothing to share"),
        (
            CauseName.SHORT_BLOCK,
            waterfall.tokens("short-block"),
            f"the model's block of {setup.boundary:,} tokens is longer than the shared prefix, so nothing is broken:"
            " `mini-kv why MODEL` prints the reason for its length",
        ),
        (
            CauseName.BLOCK_SIZE,
            waterfall.sixteen,
            f"blocks of {size} tokens leave more unshared than blocks of {SMALL_BLOCK} would: {remedy}",
        ),
    ]


def _pool_sentence(waterfall: Waterfall) -> str:
    if not waterfall.lost:
        return "blocks were evicted before they were used again: more memory, or less between two uses"
    more = sorted(block.num_more for block in waterfall.lost)
    waited = sorted(block.waited for block in waterfall.lost)
    return (
        f"blocks were evicted before they were used again: {more[len(more) // 2]:,} blocks more would keep half of"
        f" them, {more[len(more) * 9 // 10]:,} more nine tenths; half came back within"
        f" {waited[len(waited) // 2] / 1000:,.0f} s"
    )


def _resets(
    waterfall: Waterfall, prompts: Sequence[Prompt], observed: Sequence[int]
) -> list[tuple[CauseName, int, str]]:
    """Return the request from which on the server found nothing of the earlier prompts, if there is one.

        requests        0  1  2  3 | 4  5  6  7         6 should hit what 2 left, and does not; 7 hits what 5 left
        a reset between 3 and 4 explains both; one after 5 does not

    Each miss allows a range of positions for the reset. Each hit forbids a range. The result is the position that no
    hit forbids and that explains the most tokens.
    """
    explained = [0] * (len(prompts) + 1)
    votes = [0] * (len(prompts) + 1)
    forbidden = [0] * (len(prompts) + 1)
    size = waterfall.setup.hash_block_size
    stack = Stack([prompt.num_tokens // size for prompt in prompts])
    for number, (prompt, hit, seen) in enumerate(zip(prompts, waterfall.hits, observed, strict=True)):
        num_usable = (prompt.num_tokens - 1) // size
        chain = prompt.block_hashes[: min(num_usable, (hit or 0) // size)]
        for offset, request, _ in stack.needs(chain):
            is_lost = offset * size >= seen
            stretch = explained if is_lost else forbidden
            stretch[request + 1] += size if is_lost else 1
            stretch[number + 1] -= size if is_lost else 1
            if is_lost and offset * size == seen:
                votes[request + 1] += 1
                votes[number + 1] -= 1
        stack.touch(prompt.block_hashes, num_usable, prompt.num_tokens % size > 0)
    best = (0, 0)
    tokens = num_votes = num_forbidden = 0
    for number in range(len(prompts)):
        tokens += explained[number]
        num_votes += votes[number]
        num_forbidden += forbidden[number]
        if not num_forbidden and num_votes >= _LEAST_REQUESTS:
            best = max(best, (tokens, -number))
    if not best[0]:
        return []
    text = f"from request {-best[1] + 1} on the server found nothing of the earlier prompts: its cache was reset"
    return [(CauseName.RESET, best[0], text)]
