"""From tokens to text that may be shown: whole characters only, and no part of a stop string.

A token is bytes, and a character may begin in one token and end in the next. A text that ends at "###" must not
show "##" and remove it later. So text that may still change is held back:

    tokens          "He"   " said"   " #"    "#"     "9"
    shown           "He"   " said"   " "     ""      "##9"
    waiting                           "#"    "##"
"""

import codecs
from collections.abc import Sequence
from typing import Protocol


class TextTokenizer(Protocol):
    """The methods of a tokenizer that the engine calls."""

    eos_token_id: int | None
    """The token that ends a text."""

    def encode(self, text: str) -> list[int]:
        """Return the ids."""

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of the tokens. The bytes of two joined lists are the bytes of both lists, joined."""


class IncrementalDetokenizer:
    """The growing text of one sample. Source: vLLM `IncrementalDetokenizer` (v1/engine/detokenizer.py)."""

    def __init__(self, tokenizer: TextTokenizer, stop: Sequence[str]) -> None:
        """Start without text."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = stop
        self.text = ""
        """The text that may be shown so far."""
        self._waiting = ""

    def append(self, token_id: int, *, may_stop: bool = True) -> bool:
        """Add a token. Return whether the text has reached a stop string, which is then removed.

        If the text may not stop yet, a stop string that ends with this token is normal text.
        """
        self._waiting += self._decoder.decode(self._tokenizer.decode_bytes([token_id]))
        ends = [self._waiting.find(stop) for stop in self._stop if may_stop and stop in self._waiting]
        if ends:
            self.text += self._waiting[: min(ends)]
            self._waiting = ""
            return True
        num_shown = len(self._waiting) - self._num_uncertain()
        self.text += self._waiting[:num_shown]
        self._waiting = self._waiting[num_shown:]
        return False

    def finish(self) -> None:
        """Show the text that was held back. Bytes that are not a whole character become U+FFFD."""
        self.text += self._waiting + self._decoder.decode(b"", final=True)
        self._waiting = ""

    def _num_uncertain(self) -> int:
        """Return the number of characters at the end that could be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._waiting)), longest, -1):
                if self._waiting.endswith(stop[:length]):
                    longest = length
                    break
        return longest
