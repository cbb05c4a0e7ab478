"""The tokenizers of transformers, behind the engine's few calls."""

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.huggingface_checkpoint import load_huggingface
from mini_kv.engine.huggingface_tokenizer import HuggingFaceTokenizer
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
