"""The regular expressions by which published tokenizers split a text. No others are accepted.

A pattern in a file may be very slow: `(a+)+$` takes twice as long with every further letter. No rule distinguishes such
patterns from fast ones. The patterns here are known. Their time grows with the length of the text.

Standard library only.
"""

from collections.abc import Iterator
from typing import Any

OURS = r" ?[A-Za-z]+|[0-9]| ?[^ \n0-9A-Za-z]+|[ \n]+"
"""How the small model's tokenizer splits a text: words and signs with the space before them, digits, white space."""
GPT_2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 splits a text: words, numbers and signs with the space before them, and the remaining white space."""

_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SIGNS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = (  # with capitals in front, or throughout
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SIGNS_WITH_SLASHES = _SIGNS_AND_SPACE.replace(r"[\r\n]*", r"[\r\n/]*")

KNOWN_PATTERNS = {
    OURS: "mini_kv",
    GPT_2: "GPT-2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "GPT-2, spelled out",
    rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACE}": "Llama 3",
    rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SIGNS_AND_SPACE}": "Qwen",
    rf"{_WORDS[0]}{_SHORT_FORMS}?|{_WORDS[1]}{_SHORT_FORMS}?|\p{{N}}{{1,3}}|{_SIGNS_WITH_SLASHES}": "GPT-OSS",
    rf"{_WORDS[0]}|{_WORDS[1]}|\p{{N}}|{_SIGNS_WITH_SLASHES}": "Mistral",
    r"\p{N}": "a digit",
    r"\p{N}+": "a number",
    r"\p{N}{1,3}": "up to three digits",
}
"""The patterns, and the model that each comes from. Source: these models' `tokenizer.json`."""


def patterns_in(data: Any) -> Iterator[Any]:
    """Yield every pattern in a parsed `tokenizer.json`: the values of the key "Regex", at any depth."""
    if isinstance(data, dict):
        if "Regex" in data:
            yield data["Regex"]
        data = list(data.values())
    if isinstance(data, list):
        for value in data:
            if isinstance(value, dict | list):
                yield from patterns_in(value)
