"""The random requests of a workload: their prompts, images, salts and adapters. Imports no torch."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mini_kv.core.request import LoRARequest, MultiModalFeature

VOCABULARY = 1000
"""The tokens are below it. A wrong draft is not."""
NAMES = tuple("ABCDEFGHIJKL")
"""Ids of requests. An id comes again when its request has ended."""


class Tenants(NamedTuple):
    """The salts and adapters of a workload. A hash must tell them apart."""

    salts: Sequence[str | None]
    adapters: Sequence[LoRARequest | None]


LONG = "p" * 254
"""A field of more than 255 bytes can be made with it. Its length has two bytes."""
TENANTS = (
    Tenants(  # adapters with the names of salts
        (None, "poet", "cook"),
        (
            None,
            LoRARequest("poet", "/adapters/poet"),
            LoRARequest("cook", "/adapters/poet"),
            LoRARequest("poet", "/adapters/cook"),
        ),
    ),
    Tenants(  # equal if name and path are joined without their lengths, or with a zero byte between them
        (None, "poet"),
        (
            LoRARequest("asb", "c"),
            LoRARequest("a", "bsc"),
            LoRARequest("a\0sb", "c"),
            LoRARequest("a", "b\0sc"),
        ),
    ),
    Tenants(  # equal if a length has one byte, or if characters without a UTF-8 form are replaced
        (None, "\ud800", "\ud801"),
        (LoRARequest("n", f"{LONG}\x02sq"), LoRARequest(f"n\x02s{LONG}", "q")),
    ),
)
_PICTURES = ("cat-0001", "dog-0001")
STOPS = (0, 1)
"""The tokens that end a text."""


class Text(NamedTuple):
    """The tokens of a request and its images."""

    token_ids: Sequence[int]
    images: Sequence[MultiModalFeature]


class Prompts:
    """Prompts that often have a beginning in common."""

    def __init__(self, chance: random.Random, block_size: int, max_tokens: int, has_images: bool) -> None:
        """Draw two long texts. `max_tokens`: the most of a request, prompt and answer."""
        self._chance, self._max_tokens, self._has_images = chance, max_tokens, has_images
        self._documents = [self._document() for _ in range(2)]
        self._last = Text(self._documents[0].token_ids[:block_size], [])
        """The last prompt."""
        self.texts: list[Text] = []
        """The texts of the requests so far, prompt and answer."""

    def draw(self) -> Text:
        """Return a text that is new, known, or a beginning of a known one with or without new tokens after it.

        Sometimes it is the last one again: twins run side by side.
        """
        most = self._max_tokens - 1
        if self._chance.random() < 0.2:
            return self._last
        new = [token(self._chance) for _ in range(self._chance.randrange(1, 1 + most // 2))]
        known = self._chance.choice([*self._documents, *self.texts])
        cut = self._chance.choice((0, most, *(self._chance.randrange(1, most) for _ in range(3))))
        tokens = list(known.token_ids)[:cut]
        if not tokens or self._chance.random() < 0.3:
            tokens = (tokens + new)[:most]
        shown = [each for each in known.images if each.offset + each.length <= min(cut, len(tokens))]
        if tokens and self._chance.random() < 0.1:
            self._change(tokens)
        if self._chance.random() < 0.5:
            shown = [replace(each, identifier=self._chance.choice(_PICTURES)) for each in shown]
        if self._chance.random() < 0.2:
            shown = [replace(each, offset=max(each.offset - 1, 0)) for each in shown]
        self._last = Text(tokens, shown)
        return self._last

    def _change(self, tokens: list[int]) -> None:
        """Change one token so that its last bytes stay the same, or two so that their digits do."""
        at, kind = self._chance.randrange(len(tokens)), self._chance.randrange(2)
        if kind == 0 and at + 1 < len(tokens):
            first, last = divmod(tokens[at], 10)
            tokens[at : at + 2] = [first, int(f"{last}{tokens[at + 1]}")]
        else:
            tokens[at] += 256 ** self._chance.choice((1, 2))

    def _document(self) -> Text:
        """Return a long text. In a workload with images it has three pairs of them, of one token and of two."""
        size = self._max_tokens
        places = [self._chance.randrange(size - 1) for _ in range(3 if self._has_images else 0)]
        images = [MultiModalFeature(_PICTURES[0], place + at, 1 + at) for place in places for at in (0, 1)]
        return Text([token(self._chance) for _ in range(size)], images)


def token(chance: random.Random) -> int:
    """Return a random token that does not end a text."""
    return chance.randrange(len(STOPS), VOCABULARY)
