"""Compares two engines: tokens, hits, and event by event the stored and removed blocks.

The two engines have different hashes for the same content (deviation `hash-recipe`). So each hash is replaced by the
tokens that it represents, from the prompt's beginning to the block's end.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from mini_kv.dev.vllm_parity.workload import Run, Work
from mini_kv.tools.serve.kv_events import AnyEvent, BlockRemoved, BlockStored, ExternalBlockHash

AGREE = "your engine and vLLM agree on every block"
ROUNDING = 1e-3
"""Distance of the two likeliest tokens below which sums in another order may exchange them."""
Gap = Callable[[list[int]], float]
"""Returns the difference of the log probabilities of the two likeliest next tokens."""


class Told(NamedTuple):
    """An event without hashes."""

    what: str
    """`stored`, `removed` or `cleared`."""
    contents: tuple[str, ...]
    """For each block a value for its tokens and all before them."""
    num_tokens_before: int
    token_ids: tuple[int, ...]

    def __str__(self) -> str:
        names = " ".join(content[:4] for content in self.contents[:3]) + (" ..." if len(self.contents) > 3 else "")
        return f"{self.what:7} {names}" + (f"  behind {self.num_tokens_before} tokens" if self.what == "stored" else "")


class _Renamer:
    """Turns one engine's events into comparable ones."""

    def __init__(self) -> None:
        self._known: dict[ExternalBlockHash, tuple[str, int]] = {}

    def told(self, event: AnyEvent) -> Told:
        """Return the event without hashes. A hash that was never stored becomes `unknown`."""
        match event:
            case BlockStored():
                content, before = self._content(event.parent_block_hash)
                contents, size = [], event.block_size
                for index, block_hash in enumerate(event.block_hashes):
                    tokens = event.token_ids[index * size : (index + 1) * size]
                    content = sha256(f"{content} {tokens}".encode()).hexdigest()
                    self._known[block_hash] = (content, before + (index + 1) * size)
                    contents.append(content)
                return Told("stored", tuple(contents), before, tuple(event.token_ids))
            case BlockRemoved():
                return Told("removed", tuple(self._content(each)[0] for each in event.block_hashes), 0, ())
            case _:
                return Told("cleared", (), 0, ())

    def _content(self, block_hash: ExternalBlockHash | None) -> tuple[str, int]:
        return ("", 0) if block_hash is None else self._known.get(block_hash, ("unknown", 0))


def compare(work: Work, ours: Run, theirs: Run, gap: Gap) -> list[str]:
    """Return `AGREE` and some figures, or the first difference, drawn.

    `gap` returns the distance of the two likeliest tokens. Only a tiny distance lets rounding exchange them.
    """
    for number, (one, other) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
        if one != other:
            return _draw_tokens(work.prompts[number], number, (ours.name, one), (theirs.name, other), gap)
    for number, (hit, their_hit) in enumerate(zip(ours.cached, theirs.cached, strict=True)):
        if hit != their_hit:
            length = len(work.prompts[number])
            return [f"request {number}, {length} tokens: {ours.name} found {hit} of them, {theirs.name} {their_hit}"]
    return _compare_events(ours, theirs) or [AGREE, _figures(work, ours)]


def _compare_events(ours: Run, theirs: Run) -> list[str]:
    """Return the first step whose events differ, in two columns, or nothing if there is none."""
    renamers = _Renamer(), _Renamer()
    for step in range(max(len(ours.batches), len(theirs.batches))):
        columns = [
            [renamer.told(event) for event in (run.batches[step] if step < len(run.batches) else [])]
            for renamer, run in zip(renamers, (ours, theirs), strict=True)
        ]
        if columns[0] != columns[1]:
            return [
                f"the {step + 1}. step that changed the cache:",
                *_two_columns(ours.name, theirs.name, columns[0], columns[1]),
            ]
    return []


def _two_columns(name: str, other_name: str, told: Sequence[Told], other_told: Sequence[Told]) -> list[str]:
    lines = [f"    {name:46}{other_name}"]
    for row in range(max(len(told), len(other_told))):
        left, right = (each[row] if row < len(each) else None for each in (told, other_told))
        mark = "    " if left == right else "--> "
        lines.append(f"{mark}{left or '-'!s:46}{right or '-'}")
    return lines


def _draw_tokens(
    prompt: list[int], number: int, ours: tuple[str, list[int]], theirs: tuple[str, list[int]], gap: Gap
) -> list[str]:
    """Return the answers around their first difference, and whether rounding explains it."""
    place = next(i for i, (one, other) in enumerate(zip(ours[1], theirs[1], strict=True)) if one != other)
    distance = gap([*prompt, *ours[1][:place]])
    verdict = "rounding can turn them" if distance < ROUNDING else "too far for rounding"
    shown = slice(max(0, place - 5), place + 3)
    return [
        f"request {number}, {len(prompt)} tokens: the answers part at token {place + 1}",
        *(f"    {name:12} ... {' '.join(map(str, tokens[shown]))}" for name, tokens in (ours, theirs)),
        f"    the two likeliest tokens there differ by {distance:.1e} in logarithm of probability: {verdict}",
    ]


def _figures(work: Work, run: Run) -> str:
    events = [event for batch in run.batches for event in batch]
    num_stored = sum(len(event.block_hashes) for event in events if isinstance(event, BlockStored))
    num_removed = sum(len(event.block_hashes) for event in events if isinstance(event, BlockRemoved))
    return (
        f"{len(work.prompts)} requests, {sum(map(len, work.prompts)):,} tokens of prompts of which"
        f" {sum(run.cached):,} were found, {sum(map(len, run.tokens)):,} tokens of answers; {num_stored:,} blocks"
        f" stored and {num_removed:,} removed in {len(run.batches):,} steps"
    )
