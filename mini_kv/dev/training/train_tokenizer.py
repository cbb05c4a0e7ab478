"""Learn byte-level BPE from a text: the most frequent pairs of bytes become tokens."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence

from mini_kv.engine.hf.tokenizer_patterns import OURS
from mini_kv.engine.tokenizer import byte_names, merge_pair


def learn_merges(texts: Sequence[str], num_merges: int) -> list[tuple[bytes, bytes]]:
    """Return the pairs that became one token, the most frequent first. Of equally frequent ones the smaller is first.

    >>> learn_merges(["the cache, the cached, the caches"], 3)  # "he" six times, then " c" of five that have three
    [(b'h', b'e'), (b' ', b'c'), (b' c', b'a')]
    """
    counts = Counter(piece.encode() for text in texts for piece in re.findall(OURS, text))
    words = [([piece[i : i + 1] for i in range(len(piece))], count) for piece, count in counts.items()]
    merges: list[tuple[bytes, bytes]] = []
    for _ in range(num_merges):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for tokens, count in words:
            for pair in itertools.pairwise(tokens):
                pairs[pair] += count
        if not pairs:
            raise ValueError(f"after {len(merges)} merges every word is one token: {num_merges} need a longer text")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [(merge_pair(tokens, best), count) for tokens, count in words]
    return merges


def tokenizer_json(merges: Sequence[tuple[bytes, bytes]], eos_token: str) -> str:
    """Return the text of a `tokenizer.json`: token 0 ends a text, 1 to 256 are the bytes, then follow the merges."""
    names = byte_names()

    def name(token: bytes) -> str:
        return "".join(names[byte] for byte in token)

    tokens = [eos_token, *(names[byte] for byte in range(256)), *(name(left + right) for left, right in merges)]
    end = {"id": 0, "content": eos_token, "special": True, "normalized": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    cut = {"type": "Split", "pattern": {"Regex": OURS}, "behavior": "Isolated", "invert": False}
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | flags],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, to_bytes]},
        "post_processor": None,
        "decoder": to_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [[name(left), name(right)] for left, right in merges],
        },
    }
    return json.dumps(data, ensure_ascii=False, indent=0) + "\n"
