"""How the small model is made: sentences out of pages, pairs out of bytes, and the same model from the same seed."""

import dataclasses
import random

import pytest
import torch

from mini_kv.attention.options import AttentionOptions
from mini_kv.dev.training.prose import paragraphs, texts_of
from mini_kv.dev.training.train import (
    Pieces,
    Recipe,
    draw_pieces,
    make_checkpoint,
    new_model,
    piece_loss,
    seen_by_window,
)
from mini_kv.dev.training.train_tokenizer import learn_merges
from mini_kv.engine.checkpoint import load_model
from mini_kv.engine.model import ModelConfig

PAGE = """\
# Blocks

A **block** has [a hash](06.md) as soon as it is `full`,
and keeps it until its memory is needed again.

| blocks | tokens |
|--------|--------|
| 4      | 16     |

```text
A fence holds code, or a drawing that looks like a sentence.
```

- A bullet may be a sentence too, with a number such as 4 in it.
- Too short.

```kv-story
two-holders
```

## Next

What comes after a heading belongs to another text, if the first was long enough.
"""
SENTENCES = [
    "A block has a hash as soon as it is full, and keeps it until its memory is needed again.",
    "A bullet may be a sentence too, with a number such as 4 in it.",
    "What comes after a heading belongs to another text, if the first was long enough.",
]
SMALL = ModelConfig(
    vocab_size=280,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=64,
)
RECIPE = Recipe(steps=30, batch_size=2, piece=32, learning_rate=1e-2, warmup=3)
PROSE = [f"{who} asks for a block, and {who} gives it back." for who in ("A", "B", "C", "D", "E", "F", "G")] * 2


class TestProse:
    def test_only_sentences_are_left_of_a_page(self):
        assert paragraphs(PAGE) == SENTENCES

    def test_short_sections_are_one_text(self, tmp_path):
        (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
        assert list(texts_of(tmp_path / "page.md")) == ["\n\n".join(SENTENCES)]

    def test_a_long_section_is_a_text_of_its_own(self, tmp_path):
        long = "\n\n".join(SENTENCES * 4)
        (tmp_path / "page.md").write_text(f"# One\n\n{long}\n\n# Two\n\n{SENTENCES[0]}\n", encoding="utf-8")
        assert list(texts_of(tmp_path / "page.md")) == [long, SENTENCES[0]]

    def test_modules_speak_and_functions_do_not(self, tmp_path):
        path = tmp_path / "module.py"
        path.write_text(f'"""{SENTENCES[0]}"""\n\n\ndef f():\n    """{SENTENCES[1]}"""\n', encoding="utf-8")
        assert list(texts_of(path)) == [SENTENCES[0]]

    def test_strings_of_a_table_speak_and_numbers_do_not(self, tmp_path):
        path = tmp_path / "story.toml"
        path.write_text(f'n = 1\n[[step]]\ncaption = "{SENTENCES[0]}"\ncall = "free"\n', encoding="utf-8")
        assert list(texts_of(path)) == [SENTENCES[0]]


class TestMerges:
    def test_the_most_frequent_pair_comes_first(self):
        assert learn_merges(["aab aab xy"], 2) == [(b"a", b"a"), (b"aa", b"b")]

    def test_of_equals_the_smaller_by_its_bytes(self):
        assert learn_merges(["xy", "ab"], 2) == [(b"a", b"b"), (b"x", b"y")]

    def test_no_merge_crosses_from_a_word_to_the_next(self):
        assert learn_merges(["a b a b a b"], 1) == [(b" ", b"b")]

    def test_a_text_that_is_too_short_is_named(self):
        with pytest.raises(ValueError, match="after 2 merges every word is one token: 3 need a longer text"):
            learn_merges(["abc"], 3)


class TestTraining:
    def test_no_piece_sees_another(self):
        torch.manual_seed(0)
        model = new_model(SMALL)
        pieces = torch.randint(0, 280, (2, 9))
        together = piece_loss(model, pieces)
        alone = torch.stack([piece_loss(model, pieces[:1]), piece_loss(model, pieces[1:])]).mean()
        torch.testing.assert_close(together, alone)

    def test_a_layer_with_a_window_learns_with_it(self):
        assert seen_by_window(4, 2).long().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
        value = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None, None]
        alike = torch.zeros(4, 1, 1)  # every query likes every key as much, so it gets the mean of what it sees
        seen = Pieces(4)(0, alike, alike, value, AttentionOptions(sliding_window=2))
        assert seen.flatten().tolist() == [1.0, 1.5, 3.0, 6.0]

    def test_a_piece_begins_somewhere_and_goes_on_with_whole_texts(self):
        pieces = draw_pieces([[1, 2, 3, 0], [4, 5, 0]], dataclasses.replace(RECIPE, piece=11), random.Random(0))
        assert pieces.tolist() == [
            [5, 0, 1, 2, 3, 0, 4, 5, 0, 4, 5, 0],
            [5, 0, 4, 5, 0, 4, 5, 0, 1, 2, 3, 0],
        ]

    def test_the_rate_goes_up_in_a_line_and_down_along_a_cosine(self):
        recipe = Recipe(steps=100, warmup=10, learning_rate=1.0)
        rates = [recipe.rate(step) for step in (0, 4, 9, 10, 55, 100)]
        assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.525, 0.05])

    @pytest.mark.slow
    def test_the_same_seed_makes_the_same_folder(self, tmp_path, capsys):
        for name in ("once", "again"):
            make_checkpoint(tmp_path / name, PROSE, SMALL, RECIPE)
        files = sorted(path.name for path in (tmp_path / "once").iterdir())
        assert files == ["README.md", "config.json", "held_out.txt", "model.safetensors", "tokenizer.json"]
        for name in files:
            assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name

    @pytest.mark.slow
    def test_it_learns(self, tmp_path, capsys):
        make_checkpoint(tmp_path, PROSE, SMALL, RECIPE)
        said = capsys.readouterr().out.splitlines()
        assert said[-1].startswith("step    30  loss ")
        model, tokenizer = load_model(tmp_path)
        page = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert tokenizer.eos_token_id == 0
        assert model.config == SMALL
        assert "a guess among all tokens would be 5.63" in page
        assert 0 < float(page.split("surprise")[1].split()[0]) < 5.0
