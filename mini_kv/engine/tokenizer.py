"""Text to token ids and back: byte-level BPE, read from a Hugging Face `tokenizer.json`.

A model reads numbers. A token is a sequence of bytes that occurred often enough to get its own number:

    the cache        is cut into pieces           "the" and " cache"
    " cache"         each a row of bytes          " " "c" "a" "c" "h" "e"
                     neighbours are merged        " " "ca" "c" "he", then " ca" "che", then " cache"
                     the token has an id          350

Each of the 256 bytes is a token, so every text and every string of bytes can be encoded.

Standard library only.
"""

import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mini_kv.core.strict_json import read_object
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.hf.tokenizer_patterns import GPT_2, KNOWN_PATTERNS

MAX_TOKENIZER_BYTES = 64 << 20
"""Bytes of the largest file that is read. Gemma 3's, with 262,144 tokens, has 33 MB."""
_MAX_SPECIAL_TOKENS, _MAX_SPECIAL_LENGTH = 1024, 128
"""The most special tokens, and the most characters of each: every text is searched for all of them."""
_MAX_CUTS = 8
"""The most patterns that split one text, one after the other."""
_WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Unicode's white space, which the patterns of a `tokenizer.json` mean. Python's has four more control characters."""


class Tokenizer:
    """Byte-level BPE with special tokens."""

    def __init__(
        self,
        vocab: Mapping[bytes, int],
        merges: Sequence[tuple[bytes, bytes]],
        patterns: Sequence[re.Pattern[str]],
        special_tokens: Mapping[str, int],
        eos_token_id: int | None,
    ) -> None:
        """Make a tokenizer of its parts.

        Args:
            vocab: a token's bytes to its id. It contains all 256 single bytes.
            merges: pairs of tokens that become one token, in the order in which they were learned.
            patterns: each splits its pieces into matches and the text between them. No merge crosses a split.
            special_tokens: ids by name, of tokens without text, such as the one that ends a text.
            eos_token_id: the special token that ends a text.
        """
        self._vocab = dict(vocab)
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._patterns = list(patterns)
        self._special = dict(special_tokens)
        self._bytes = {token_id: token for token, token_id in vocab.items()}
        self._bytes |= dict.fromkeys(self._special.values(), b"")
        self._pieces: dict[bytes, list[int]] = {}
        self.eos_token_id = eos_token_id
        self.vocab_size = max(self._bytes) + 1

    @classmethod
    def from_file(cls, path: str | Path, eos_token_id: int | None = None) -> "Tokenizer":
        """Read a `tokenizer.json`.

        Args:
            path: the file.
            eos_token_id: the special token that ends a text, from `config.json`.

        Raises:
            CheckpointError: no such file, not a tokenizer, or of a kind that this class cannot reproduce exactly.
        """
        return _Reader(Path(path)).tokenizer(eos_token_id)

    def encode(self, text: str) -> list[int]:
        """Return the ids. Lone surrogates (from `errors="surrogateescape"`) become the original bytes again."""
        ids: list[int] = []
        for part in self._split_at_special(text):
            if part in self._special:
                ids.append(self._special[part])
                continue
            for piece in self._pieces_of(part):
                ids += self._encode_piece(piece.encode("utf-8", "surrogateescape"))
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the text of the tokens. A character may begin in one token and end in the next."""
        for token_id in ids:
            if token_id not in self._bytes:
                raise ValueError(f"token id {token_id} is not in the vocabulary of {self.vocab_size}")
        return b"".join(self._bytes[token_id] for token_id in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text. Bytes that are not a character become U+FFFD. Special tokens have no text."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def fill_up(self, vocab_size: int) -> None:
        """Give an empty text to ids below `vocab_size` without a token: a model's matrix may have more rows."""
        self._bytes = dict.fromkeys(range(vocab_size), b"") | self._bytes
        self.vocab_size = max(self.vocab_size, vocab_size)

    def _split_at_special(self, text: str) -> list[str]:
        if not self._special:
            return [text]
        longest_first = sorted(self._special, key=len, reverse=True)
        return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)

    def _pieces_of(self, text: str) -> list[str]:
        pieces = [text]
        for pattern in self._patterns:
            pieces = [part for piece in pieces for part in _isolate(pattern, piece)]
        return pieces

    def _encode_piece(self, piece: bytes) -> list[int]:
        if piece not in self._pieces:
            self._pieces[piece] = [self._vocab[token] for token in self._merge(piece)]
        return self._pieces[piece]

    def _merge(self, piece: bytes) -> list[bytes]:
        """Return the tokens of a piece. While neighbours are a learned pair, merge the pair that was learned first."""
        tokens = [piece[i : i + 1] for i in range(len(piece))]
        while True:
            pairs = [pair for pair in itertools.pairwise(tokens) if pair in self._ranks]
            if not pairs:
                return tokens
            tokens = merge_pair(tokens, min(pairs, key=self._ranks.__getitem__))


def merge_pair(tokens: Sequence[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """Return the tokens with every occurrence of the pair as one token, from left to right.

    >>> merge_pair([b"a", b"a", b"a", b"b"], (b"a", b"a"))
    [b'aa', b'a', b'b']
    """
    merged: list[bytes] = []
    i = 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            merged.append(pair[0] + pair[1])
            i += 2
        else:
            merged.append(tokens[i])
            i += 1
    return merged


def _isolate(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the matches and the texts between them."""
    end = 0
    for match in pattern.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        if match.group():
            yield match.group()
        end = match.end()
    if end < len(text):
        yield text[end:]


def python_pattern(pattern: str) -> str:
    r"""Return a pattern of a `tokenizer.json` for Python's `re`, which has no `\p{L}` and a different `\s`.

    Cost: the first `\p` goes through all of Unicode, a third of a second.

    >>> re.findall(python_pattern(r" ?\p{L}+|\p{N}"), "zwölf Wände, 4²")
    ['zwölf', ' Wände', '4', '²']
    """

    def spelled_out(match: re.Match[str]) -> str:
        name = match.group()
        characters = _characters(name[3]) if name.startswith(r"\p") else _WHITE_SPACE
        in_brackets = pattern.rfind("[", 0, match.start()) > pattern.rfind("]", 0, match.start())
        if in_brackets:
            return characters
        return f"[^{characters}]" if name == r"\S" else f"[{characters}]"

    return re.sub(r"\\p\{[LN]\}|\\s|\\S", spelled_out, pattern)


@cache
def _characters(category: str) -> str:
    """Return the ranges of the characters whose Unicode category begins like this, as in a pattern's brackets."""
    ranges = ""
    codes = range(sys.maxunicode + 1)
    for is_one, run in itertools.groupby(codes, key=lambda code: unicodedata.category(chr(code))[0] == category):
        if is_one:
            first, *others = run
            ranges += f"{chr(first)}-{chr(others[-1] if others else first)}"
    return ranges


def byte_names() -> dict[int, str]:
    """Return the character for each byte in a `tokenizer.json`, as GPT-2 introduced it.

    A byte that is a printable character other than the space is that character. The other bytes, in order, are the
    characters from U+0100 on.

    >>> byte_names()[0x41], byte_names()[0x20]
    ('A', 'Ġ')
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in names]
    return names | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


class _Reader:
    """Reads one `tokenizer.json`, and refuses settings that would silently give wrong tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_of = {name: byte for byte, name in byte_names().items()}

    def tokenizer(self, eos_token_id: int | None) -> Tokenizer:
        data = read_object(self.path, CheckpointError, MAX_TOKENIZER_BYTES, needed_for="the model's tokens")
        try:
            return self._build(data, eos_token_id)
        except CheckpointError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise CheckpointError(self.path, f"is not a tokenizer: {type(error).__name__}: {error}") from None

    def _build(self, data: Any, eos_token_id: int | None) -> Tokenizer:
        self._check_options(data)
        model = data["model"]
        special = self._special_tokens(data.get("added_tokens") or [])
        if eos_token_id is not None and eos_token_id not in special.values():
            raise CheckpointError(self.path, f"has no special token {eos_token_id}, which should end a text")
        vocab = {self._token(name): self._id(name, id_) for name, id_ in model["vocab"].items() if name not in special}
        if len({*vocab.values(), *special.values()}) < len(vocab) + len(special):
            raise CheckpointError(self.path, "has two tokens with the same id")
        merges = [self._merge(merge) for merge in model["merges"]]
        self._check_vocab(vocab, merges)
        patterns = list(itertools.islice(self._patterns(data["pre_tokenizer"]), _MAX_CUTS + 1))
        if len(patterns) > _MAX_CUTS:
            raise CheckpointError(self.path, f"cuts texts by more than {_MAX_CUTS} patterns")
        return Tokenizer(vocab, merges, patterns, special, eos_token_id)

    def _check_options(self, data: Any) -> None:
        """Refuse all options but those of GPT-2's byte pair encoding."""
        model = data["model"]
        self._only("model.type", model.get("type"), "BPE")
        for option in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
            self._only(f"model.{option}", model.get(option) or None, None)
        self._only("model.ignore_merges", model.get("ignore_merges", False), False)
        self._only("normalizer", data.get("normalizer"), None)
        self._only("decoder.type", (data.get("decoder") or {}).get("type"), "ByteLevel")
        self._only("post_processor.type", (data.get("post_processor") or {"type": "ByteLevel"})["type"], "ByteLevel")

    def _check_vocab(self, vocab: dict[bytes, int], merges: list[tuple[bytes, bytes]]) -> None:
        """Refuse a vocabulary that lacks a byte, or a part or the result of a merge."""
        for byte, name in byte_names().items():
            if bytes([byte]) not in vocab:
                raise CheckpointError(self.path, f"has no token for the byte {byte:#04x}, {name!r} by name")
        for left, right in merges:
            if not {left, right, left + right} <= vocab.keys():
                raise CheckpointError(self.path, f"merges {left!r} and {right!r}, and one of the three has no id")

    def _special_tokens(self, added: list[dict[str, Any]]) -> dict[str, int]:
        """Return the ids of the special tokens, by name."""
        if len(added) > _MAX_SPECIAL_TOKENS:
            raise CheckpointError(self.path, f"has {len(added)} added tokens, at most {_MAX_SPECIAL_TOKENS} are read")
        special = {}
        for token in added:
            name = token["content"]
            if not isinstance(name, str) or not 1 <= len(name) <= _MAX_SPECIAL_LENGTH:
                length = f"1 to {_MAX_SPECIAL_LENGTH} characters"
                raise CheckpointError(self.path, f"has the added token {name!r}, it must be a text of {length}")
            self._only(f"special of {name!r}", token["special"], True)
            for flag in ("single_word", "lstrip", "rstrip"):
                self._only(f"{flag} of {name!r}", token.get(flag, False), False)
            special[name] = self._id(name, token["id"])
        return special

    def _id(self, name: str, value: object) -> int:
        if type(value) is not int or value < 0:
            raise CheckpointError(self.path, f"the id of token {name!r} is {value!r}, it must be a whole number")
        return value

    def _only(self, what: str, found: object, supported: object) -> None:
        if found != supported:
            raise CheckpointError(self.path, f"{what} is {found!r}, and only {supported!r} is supported")

    def _token(self, name: str) -> bytes:
        return bytes(self.bytes_of[character] for character in name)

    def _merge(self, merge: str | list[str]) -> tuple[bytes, bytes]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        return self._token(left), self._token(right)

    def _patterns(self, step: Any) -> Iterator[re.Pattern[str]]:
        """Yield the patterns that split a text, in order."""
        match step["type"]:
            case "Sequence":
                for inner in step["pretokenizers"]:
                    yield from self._patterns(inner)
            case "Split":
                self._only("pre_tokenizer.behavior", step["behavior"], "Isolated")
                self._only("pre_tokenizer.invert", step["invert"], False)
                pattern = step["pattern"]
                if "Regex" in pattern:
                    yield self._compile(pattern["Regex"])
                else:
                    yield re.compile(re.escape(pattern["String"]))
            case "Digits":
                yield self._compile(r"\p{N}" if step["individual_digits"] else r"\p{N}+")
            case "ByteLevel":
                self._only("pre_tokenizer.add_prefix_space", step["add_prefix_space"], False)
                if step["use_regex"]:
                    yield self._compile(GPT_2)
            case other:
                self._only("pre_tokenizer.type", other, "ByteLevel")

    def _compile(self, pattern: str) -> re.Pattern[str]:
        if pattern not in KNOWN_PATTERNS:
            raise CheckpointError(self.path, f"cuts texts by {pattern!r}, which is not one of the known patterns")
        try:
            return re.compile(python_pattern(pattern))
        except re.error as error:
            raise CheckpointError(self.path, f"cuts texts by {pattern!r}, which is not supported: {error}") from None
