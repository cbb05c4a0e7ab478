"""The tokenizers of transformers, behind the engine's few calls."""

import inspect
import json
import re
import time

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.hf.hf_tokenizer import HuggingFaceTokenizer
from mini_kv.engine.hf.tokenizer_patterns import KNOWN_PATTERNS
from mini_kv.tests.engine.huggingface import checkpoints

TEXTS = ["the cache", "Schlüssel und Werte", "  two  spaces\n\tand a tab", "鍵と値", "\U0001f511", "<0x41> ▁", ""]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level():
    """Make a tokenizer like those of Llama 3, Qwen and GPT-OSS: a token is bytes, each written as a character."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["the cache keeps keys and values, the past of the text"], trainer)
    library.add_tokens([AddedToken("<think>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=library, eos_token="<eos>")


def byte_fallback():
    """Make a tokenizer like those of Llama 2, Mistral and Gemma: a token is text, and bytes are the last resort."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *BYTES, "▁", *"abcdehkstu", "▁t", "▁th"])}
    merges = [("▁", "t"), ("▁t", "h")]
    library = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def test_the_patterns_of_transformers_own_tokenizers_are_known():
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    llama_3 = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    assert {PRETOKENIZE_REGEX, llama_3} <= KNOWN_PATTERNS.keys()


@pytest.mark.parametrize("pattern", KNOWN_PATTERNS, ids=KNOWN_PATTERNS.get)
def test_a_long_row_of_anything_is_cut_in_no_time_by_the_library_too(pattern):
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    cut = Split(Regex(pattern), "isolated")
    for letters in ("a", "A", "1", " ", "\n", "'", "é", " \n", "Aa", "'s ", "/\r"):
        began = time.process_time()
        assert cut.pre_tokenize_str(letters * 20_000 + "!")
        assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["pre_tokenizer"].update(type="Split"), "its tokenizer cannot be used: "),
        (
            lambda data: data.update(pre_tokenizer=split_by("(a+)+$")),
            "has the pattern '(a+)+$', which is not one",
        ),
        (lambda data: data.update(normalizer=replace_by("(a|a)*b")), "has the pattern '(a|a)*b', which is not one of"),
        (
            lambda data: data.update(pre_tokenizer=split_by(["x"])),
            "has the pattern ['x'], which is not one of the",
        ),
        (lambda data: data["model"].update(merges=["a b c"]), "its tokenizer cannot be used: "),
    ],
)
def test_a_tokenizer_made_to_do_harm_is_refused(change, said, tmp_path):
    checkpoints.save("llama", tmp_path)
    byte_level().save_pretrained(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=re.escape(said)):
        load_huggingface(tmp_path)


def split_by(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace_by(pattern):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}


def test_bytes_that_are_no_text_are_encoded_as_what_a_reader_sees():
    tokenizer = HuggingFaceTokenizer(byte_level())
    assert tokenizer.decode(tokenizer.encode("a\udcffb")) == "a\ufffdb"


def test_a_token_that_is_not_written_in_bytes_is_its_own_text():
    """What the library's own decoder does with it."""
    theirs = byte_level()
    theirs.backend_tokenizer.model = type(theirs.backend_tokenizer.model)(
        vocab=theirs.get_vocab() | {"鍵": len(theirs)}, merges=[]
    )
    tokenizer = HuggingFaceTokenizer(theirs)
    assert tokenizer.decode([len(theirs) - 1]) == theirs.decode([len(theirs) - 1]) == "鍵"


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_ids_and_text_are_those_of_transformers(make):
    theirs = make()
    ours = HuggingFaceTokenizer(theirs)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert (ours.vocab_size, ours.eos_token_id) == (len(theirs), theirs.eos_token_id)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_the_bytes_of_all_tokens_are_the_text_even_if_a_character_is_cut(make):
    tokenizer = HuggingFaceTokenizer(make())
    ids = tokenizer.encode("鍵")
    pieces = [tokenizer.decode_bytes([token_id]) for token_id in ids]
    assert [piece for piece in pieces if piece] == [b"\xe9", b"\x8d", b"\xb5"]
    assert tokenizer.decode(ids[:-1]) == "\ufffd"


def test_special_tokens_and_ids_that_fill_up_the_matrix_stand_for_no_text_but_added_words_do():
    tokenizer = HuggingFaceTokenizer(byte_level())
    eos, think = tokenizer.eos_token_id, tokenizer.vocab_size - 1
    assert eos is not None
    assert tokenizer.decode([eos, think, tokenizer.vocab_size + 5]) == "<think>"


def test_a_continuation_keeps_its_first_space():
    tokenizer = HuggingFaceTokenizer(byte_fallback())
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_a_folder_with_a_tokenizer_brings_it_along_and_a_broken_one_is_refused(tmp_path):
    checkpoints.save("llama", tmp_path)
    byte_level().save_pretrained(tmp_path)
    tokenizer = load_huggingface(tmp_path)[1]
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("the cache")) == "the cache"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="its tokenizer cannot be used"):
        load_huggingface(tmp_path)


def test_tokens_that_do_not_spell_bytes_are_refused():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    library = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1, "##b": 2}))
    library.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="WordPiece"):
        HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=library, unk_token="[UNK]"))
