"""Byte-level BPE: what goes in comes out, tokens are those of the `tokenizers` library, and errors say where."""

import importlib.util
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.hf.tokenizer_patterns import GPT_2, KNOWN_PATTERNS, patterns_in
from mini_kv.engine.tokenizer import Tokenizer, python_pattern

TINY = Path(__file__).parents[2] / "engine" / "tiny" / "tokenizer.json"
ROOT = Path(__file__).parents[3]
needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None,
    reason="comparing with Hugging Face's tokenizers needs them: pip install tokenizers",
)

TEXTS = [
    "",
    " ",
    "A block is",
    "  two spaces, a tab\tand a line\n\n\nnext paragraph \n",
    "it's 2026, isn't it? 1,234.5 tokens/s",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "块表 и кэш 🧱🧱 e\u0301 \u200d \x00 \x7f",
    "def f(x):\n    return x[::-1]  # ok\n",
    "a<|end|>b <|end|>\n<|end|><|end|> <|end|",
]


TO_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_OSS = next(pattern for pattern, whose in KNOWN_PATTERNS.items() if whose == "GPT-OSS")


def sequence(*steps: object) -> dict[str, object]:
    """Return a pre-tokenizer that takes these steps."""
    return {"type": "Sequence", "pretokenizers": [*steps]}


def split(pattern: object) -> dict[str, object]:
    """Return the step that cuts by this pattern."""
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS = {
    "GPT-2": TO_BYTES | {"use_regex": True},
    "SmolLM2": sequence({"type": "Digits", "individual_digits": True}, TO_BYTES | {"use_regex": True}),
    "Llama 3": sequence(split({"Regex": LLAMA_3}), TO_BYTES),
    "by a string": sequence(split({"String": "s."}), TO_BYTES),
}


@pytest.fixture(scope="module")
def tiny():
    return Tokenizer.from_file(TINY, eos_token_id=0)


@pytest.fixture(scope="module")
def theirs():
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(TINY))


def special(**changes: object) -> dict[str, object]:
    """Return an added token, that of the small model if nothing is changed."""
    return {"id": 0, "content": "<|end|>", "special": True} | changes


def changed(tmp_path: Path, **changes: object) -> Path:
    """Return a copy of the small model's file with other settings; a key with dots goes down into it."""
    data = json.loads(TINY.read_text(encoding="utf-8"))
    for key, value in changes.items():
        *folders, last = key.split("__")
        place = data
        for folder in folders:
            place = place[folder]
        place[last] = value
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


class TestRoundTrip:
    @settings(deadline=None)  # a busy machine is no fault
    @given(data=st.binary())
    def test_every_string_of_bytes_comes_back(self, tiny, data):
        assert tiny.decode_bytes(tiny.encode(data.decode("utf-8", "surrogateescape"))) == data

    @settings(deadline=None)  # a busy machine is no fault
    @given(text=st.text())
    def test_every_text_comes_back(self, tiny, text):
        assert tiny.decode(tiny.encode(text)) == text

    def test_a_character_may_begin_in_one_token_and_end_in_the_next(self, tiny):
        ids = tiny.encode("块")
        assert [tiny.decode_bytes([i]) for i in ids] == [b"\xe5", b"\x9d", b"\x97"]
        assert tiny.decode(ids[:2]) == "\ufffd"
        assert tiny.decode(ids) == "块"

    def test_the_end_of_a_text_is_one_token_that_stands_for_no_text(self, tiny):
        assert tiny.eos_token_id == 0
        assert tiny.encode("<|end|>") == [0]
        assert tiny.decode([0]) == ""

    def test_an_id_that_is_no_token_is_named(self, tiny):
        with pytest.raises(ValueError, match=r"token id 5000 is not in the vocabulary of 1024"):
            tiny.decode([1, 5000])

    def test_words_of_the_subject_are_single_tokens(self, tiny):
        assert [len(tiny.encode(word)) for word in (" block", " cache", " the", " token")] == [1, 1, 1, 1]


@needs_tokenizers
class TestLikeTheLibrary:
    @pytest.mark.parametrize("text", TEXTS)
    def test_the_same_ids(self, tiny, theirs, text):
        assert tiny.encode(text) == theirs.encode(text).ids

    @settings(deadline=None)  # a busy machine is no fault
    @given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"])))
    def test_the_same_ids_for_any_text(self, tiny, theirs, text):
        assert tiny.encode(text) == theirs.encode(text).ids

    def test_the_same_ids_for_every_page_of_the_book(self, tiny, theirs):
        pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "book" / "docs").rglob("*.md"))]
        assert [page for page in pages if tiny.encode(page) != theirs.encode(page).ids] == []

    @pytest.mark.parametrize("form", PRE_TOKENIZERS)
    def test_the_same_ids_however_a_text_is_cut(self, tmp_path, form):
        import tokenizers

        path = changed(tmp_path, pre_tokenizer=PRE_TOKENIZERS[form])
        ours, theirs = Tokenizer.from_file(path, eos_token_id=0), tokenizers.Tokenizer.from_file(str(path))

        @settings(deadline=None)  # a busy machine is no fault
        @given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"])) | st.text(" \x1c\u3000\n'st1²½aéλ字_-!"))
        def same(text):
            assert ours.encode(text) == theirs.encode(text).ids

        same()
        assert [text for text in TEXTS if ours.encode(text) != theirs.encode(text).ids] == []

    def test_merges_may_be_written_as_pairs_or_as_words(self, tiny, tmp_path):
        pairs = json.loads(TINY.read_text(encoding="utf-8"))["model"]["merges"]
        words = Tokenizer.from_file(changed(tmp_path, model__merges=[" ".join(pair) for pair in pairs]))
        assert [words.encode(text) for text in TEXTS] == [tiny.encode(text) for text in TEXTS]

    def test_the_same_text_for_any_ids(self, tiny, theirs):
        dice = random.Random(0)
        for _ in range(200):
            ids = [dice.randrange(tiny.vocab_size) for _ in range(20)]
            assert tiny.decode(ids) == theirs.decode(ids)


def test_it_needs_nothing_but_the_standard_library():
    look = "sorted({'torch', 'numpy', 'regex', 'tokenizers'} & set(sys.modules))"
    script = f"import sys, mini_kv.engine.tokenizer; print({look})"
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert output == "[]\n"


class TestPatterns:
    """A pattern is a program from a file: only those of published tokenizers are run, and they are quick."""

    def test_that_of_each_pre_tokenizer_here_is_known(self):
        found = [pattern for form in PRE_TOKENIZERS.values() for pattern in patterns_in(form)]
        assert found == [LLAMA_3]
        assert {LLAMA_3, GPT_2, *patterns_in(json.loads(TINY.read_text(encoding="utf-8")))} <= KNOWN_PATTERNS.keys()

    def test_a_pattern_is_found_wherever_it_stands(self):
        assert list(patterns_in({"a": [{"b": {"Regex": "x"}}, {"Regex": ["y"]}], "Regex": "z"})) == ["z", "x", ["y"]]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "pattern", [pattern for pattern in KNOWN_PATTERNS if "Lu" not in pattern], ids=KNOWN_PATTERNS.get
    )
    @pytest.mark.parametrize("letters", ["a", " ", "\n", "A", "1", "'", "-", " \n", "a ", "é", "'s "])
    def test_a_long_row_of_anything_is_cut_in_no_time(self, pattern, letters):
        text = letters * 20_000
        for tail in ("", "b", "\n", "!"):
            began = time.process_time()
            assert re.findall(python_pattern(pattern), text + tail) is not None
            assert time.process_time() - began < 1


class TestErrors:
    def test_no_file(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"nothing\.json: there is no such file"):
            Tokenizer.from_file(tmp_path / "nothing.json")

    def test_a_damaged_file(self, tmp_path):
        path = tmp_path / "tokenizer.json"
        path.write_text(TINY.read_text(encoding="utf-8")[:1000], encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not JSON: .* line \d+"):
            Tokenizer.from_file(path)

    @pytest.mark.parametrize("content", ["[]", "{}", '{"model": []}', '{"model": {"type": "BPE"}}'])
    def test_some_other_file(self, tmp_path, content):
        path = tmp_path / "tokenizer.json"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: "):
            Tokenizer.from_file(path)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model__type": "Unigram"}, "model.type is 'Unigram', and only 'BPE' is supported"),
            ({"model__byte_fallback": True}, "model.byte_fallback is True, and only None is supported"),
            ({"normalizer": {"type": "NFC"}}, "normalizer is {'type': 'NFC'}, and only None is supported"),
            ({"pre_tokenizer": {"type": "Metaspace"}}, "pre_tokenizer.type is 'Metaspace', and only 'ByteLevel'"),
            ({"decoder": None}, "decoder.type is None, and only 'ByteLevel' is supported"),
            ({"model__merges": [["q", "§§"]]}, "merges b'q' and b'\\xa7\\xa7', and one of the three has no id"),
            ({"added_tokens": []}, "has no special token 0, which should end a text"),
            (
                {"added_tokens": [special(content="")]},
                "has the added token '', it must be a text of 1 to 128 characters",
            ),
            ({"added_tokens": [special(content=["a"])]}, "has the added token ['a'], it must be a text"),
            ({"added_tokens": [special()] * 1025}, "has 1025 added tokens, at most 1024 are read"),
            ({"added_tokens": [special(id="0")]}, "the id of token '<|end|>' is '0', it must be a whole number"),
            ({"added_tokens": [special(), special(id=5, content="x")]}, "has two tokens with the same id"),
            ({"added_tokens": 7}, "is not a tokenizer: TypeError: "),
            ({"model__vocab__A": -1}, "the id of token 'A' is -1, it must be a whole number"),
            ({"model__vocab__A": 1.0}, "the id of token 'A' is 1.0, it must be a whole number"),
            ({"model__vocab__A": True}, "the id of token 'A' is True, it must be a whole number"),
            ({"model__vocab__A": 35}, "has two tokens with the same id"),
            ({"model__merges": ["a b c"]}, "is not a tokenizer: ValueError: too many values to unpack"),
            ({"model__merges": [["a"]]}, "is not a tokenizer: ValueError: not enough values to unpack"),
            ({"model__merges": {"a": "b"}}, "is not a tokenizer: ValueError: not enough values to unpack"),
            (
                {"pre_tokenizer": sequence(split({"Regex": "(a+)+$"}))},
                "cuts texts by '(a+)+$', which is not one of the known patterns",
            ),
            ({"pre_tokenizer": sequence(split({"Regex": ["a"]}))}, "is not a tokenizer: TypeError: "),
            ({"pre_tokenizer": sequence(*[split({"Regex": GPT_2})] * 9)}, "cuts texts by more than 8 patterns"),
            (
                {"pre_tokenizer": sequence(split({"Regex": GPT_OSS}))},
                f"cuts texts by {GPT_OSS!r}, which is not supported: bad es",
            ),
        ],
    )
    def test_what_would_be_read_wrongly_is_refused(self, tmp_path, changes, message):
        with pytest.raises(CheckpointError, match=re.escape(f"tokenizer.json: {message}")):
            Tokenizer.from_file(changed(tmp_path, **changes), eos_token_id=0)
