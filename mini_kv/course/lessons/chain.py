"""Two prompts, cut into blocks and hashed, to show where their chains of block hashes differ.

    chain("Hello world", "Hello students", block_size=4, tokens="characters")

No tokenizer is needed. Here a reader can count the tokens by hand:

    characters      the token is the character's number in Unicode
    bytes           the token is a byte of the text in UTF-8: 1 per Latin letter, 3 per Chinese character
    words           the token is a number for each different word, in order of first appearance
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.block_hash import get_request_block_hasher
from mini_kv.core.request import Request

TOKENS = ("characters", "bytes", "words")
"""The kinds of tokens. The module describes them."""


@dataclass(frozen=True, slots=True)
class ChainPreset:
    """Two prompts worth comparing."""

    label: str
    first: str
    second: str


PRESETS = (
    ChainPreset("two greetings", "Hello world", "Hello students"),
    ChainPreset("the knight and the princess", "给我讲一个关于勇敢骑士的故事...", "给我讲一个关于善良公主的故事..."),
    ChainPreset(
        "one system prompt, two questions",
        "You are a helpful assistant. Answer briefly. What is a cache?",
        "You are a helpful assistant. Answer briefly. What is a queue?",
    ),
    ChainPreset(
        "the same, with the date in front",
        "Monday. You are a helpful assistant. Answer briefly. What is a cache?",
        "Friday. You are a helpful assistant. Answer briefly. What is a cache?",
    ),
)
"""The first two follow two well-known texts on prefix caching, one in Chinese ("tell me a story about a brave knight",
"... about a kind princess"). These texts claim that the prefix is shared. In fact the block size decides that."""


@dataclass(frozen=True, slots=True)
class NamedBlock:
    """A block of a prompt."""

    text: str
    name: str | None
    """Its block hash in hex, or `None` for a block that is not full."""
    shared: bool
    """Whether the other prompt has a block with this hash."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Both prompts as blocks. A notebook shows one below the other."""

    block_size: int
    tokens: str
    rows: tuple[tuple[NamedBlock, ...], tuple[NamedBlock, ...]]

    @property
    def num_shared_blocks(self) -> int:
        """Number of full blocks that the prompts share."""
        return sum(block.shared for block in self.rows[0])

    @property
    def sentence(self) -> str:
        """A sentence with the number of full blocks that the prompts share."""
        full = [sum(block.name is not None for block in row) for row in self.rows]
        size = f"{self.block_size} {self.tokens}"
        if not all(full):
            return f"A prompt that does not fill a block of {size} has no block hash, so there is nothing to share."
        counts = f"{full[0]} and {full[1]} full blocks of {size}"
        if self.num_shared_blocks == 0:
            return f"{counts}, and no block hash in common: the chains differ from the first block on."
        noun = "block hash" if self.num_shared_blocks == 1 else "block hashes"
        end = ": all that both have." if self.num_shared_blocks == min(full) else ", then the chains are different."
        return f"{counts}. {self.num_shared_blocks} {noun} in common{end}"

    def _repr_html_(self) -> str:
        rows = "".join(_row(name, row) for name, row in zip(("first", "second"), self.rows, strict=True))
        return (
            '<div style="overflow-x:auto" tabindex="0" role="region" aria-label="Blocks and their hashes">'
            f'<table class="kv-chain">{rows}</table></div><p>{self.sentence}</p>'
        )


def chain(first: str, second: str, block_size: int, tokens: str = "characters") -> Chain:
    """Return both prompts cut into blocks of `block_size` tokens and hashed as the engine hashes them.

    Raises `ValueError` for a block size below 1 or an unknown kind of tokens.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}: it must be at least 1")
    if tokens not in TOKENS:
        raise ValueError(f"tokens is {tokens!r}; choose from {', '.join(TOKENS)}")
    words: dict[str, int] = {}
    rows = [_blocks(_pieces(text, tokens, words), block_size) for text in (first, second)]
    # A block hash stands for the whole beginning, so equal hashes mean equal beginnings.
    names = [{name for _, name in row if name is not None} for row in rows]
    named = [
        tuple(NamedBlock(text, name, name in names[1 - index]) for text, name in row) for index, row in enumerate(rows)
    ]
    return Chain(block_size, tokens, (named[0], named[1]))


def _pieces(text: str, tokens: str, words: dict[str, int]) -> list[tuple[str, int]]:
    """Return the text piece by piece, each with its token."""
    if tokens == "characters":
        return [(character, ord(character)) for character in text]
    if tokens == "bytes":
        return [(chr(byte) if 32 <= byte < 127 else f"{byte:02x} ", byte) for byte in text.encode()]
    return [(word, words.setdefault(word.strip(), len(words))) for word in re.findall(r"\S+\s*", text)]


def _blocks(pieces: Sequence[tuple[str, int]], block_size: int) -> list[tuple[str, str | None]]:
    """Return the text and the hash of each block, the partial last one included."""
    if not pieces:
        return []
    hasher = get_request_block_hasher(block_size)
    names = Request("prompt", [token for _, token in pieces], block_hasher=hasher).block_hashes
    blocks = []
    for index, start in enumerate(range(0, len(pieces), block_size)):
        text = "".join(piece for piece, _ in pieces[start : start + block_size])
        blocks.append((text, names[index].hex() if index < len(names) else None))
    return blocks


def _row(title: str, row: Sequence[NamedBlock]) -> str:
    """Return a prompt as a row of the table."""
    return f'<tr><th scope="row">{title}</th>{"".join(_cell(block) for block in row)}</tr>'


def _cell(block: NamedBlock) -> str:
    """Return a block: its text, the first digits of its hash, and whether the other prompt shares it."""
    name = block.name[:6] if block.name else "no hash"
    if block.name is None:
        border, note = "1px dashed currentColor", "not full"
    elif block.shared:
        border, note = "3px solid #0072B2", "shared"
    else:
        border, note = "1px solid currentColor", "its own"
    return (
        f'<td style="border:{border};text-align:left;white-space:pre;padding:.3em .5em">{html.escape(block.text)}'
        f"<br><code>{name}</code><br><small>{note}</small></td>"
    )
