"""The small models that come along, one of them with windows: their size, what they have learned, what they write."""

import re
import time
from pathlib import Path

import pytest
import torch

from mini_kv.dev.training.prose import read_prose
from mini_kv.dev.training.train import Pieces, text_loss
from mini_kv.engine.checkpoint import load_config, load_model, tiny_folder

ROOT = Path(__file__).parents[3]
LEARNED = 4.1
"""Nats a token on texts that it has never read; a guess among 1,024 tokens would cost 6.9."""
PROMPTS = ["A block is", "The free queue is", "When two people ask"]


@pytest.fixture(scope="module", params=[False, True], ids=["tiny", "tiny_windows"])
def folder(request):
    return tiny_folder(windows=request.param)


@pytest.fixture(scope="module")
def tiny(folder):
    return load_model(folder)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@torch.no_grad()
def write(tiny, prompt, num_tokens):
    """Return what follows the prompt, always the likeliest token, everything computed again for each."""
    model, tokenizer = tiny
    ids = tokenizer.encode(prompt)
    begin = len(ids)
    while len(ids) < begin + num_tokens and ids[-1] != tokenizer.eos_token_id:
        attend, last = Pieces(len(ids)), torch.tensor([len(ids) - 1])
        ids.append(int(model.forward(torch.tensor(ids), torch.arange(len(ids)), attend, last).argmax()))
    return tokenizer.decode(ids[begin:])


def test_it_is_loaded_in_no_time(folder):
    start = time.process_time()
    load_model(folder)
    assert time.process_time() - start < 1.0


def test_it_reads_512_tokens(folder):
    assert load_config(folder).max_position_embeddings >= 512


def test_its_heads_have_a_size_that_vllm_takes_on_a_cpu(folder):
    assert load_config(folder).head_dim in (32, 64)


def test_two_of_three_layers_have_a_window():
    config = load_config(tiny_folder(windows=True))
    assert [config.window_of(layer) for layer in range(config.num_hidden_layers)] == [32, 32, None]


@pytest.mark.slow
def test_it_expects_sentences_that_it_has_never_read(folder, tiny):
    held_out = (folder / "held_out.txt").read_text(encoding="utf-8").strip().split("\n\n\n")
    model, tokenizer = tiny
    assert text_loss(model, tokenizer, held_out) < LEARNED


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.slow
def test_it_writes_words(tiny, prompt):
    """Those of the prose: nearly all, since the prose goes on changing and the model does not."""
    known = {word for text in read_prose(ROOT) for word in words(text)}
    # The prompt's last word may go on, and the last word of all may be cut off.
    written = words(prompt + write(tiny, prompt, 60))[:-1]
    assert len(written) >= 20
    assert sum(word in known for word in written) >= 0.95 * len(written), written
