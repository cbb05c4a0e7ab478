"""`mini-kv generate --model DIR` with a checkpoint that is not in our own form."""

import importlib.util

from mini_kv.cli import main
from mini_kv.engine.generation_screen import printable
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.installer import install_extra
from mini_kv.tests.engine.huggingface import checkpoints
from mini_kv.tests.engine.huggingface.test_tokenizer import byte_level

GREEDY = ("--temperature", "0", "--max-tokens", "6")


def test_it_says_what_transformers_says(tmp_path, capsys):
    import torch

    checkpoints.save("qwen3", tmp_path, vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    capsys.readouterr()  # transformers shows how it saves
    assert main(["generate", "the cache", "--model", str(tmp_path), *GREEDY]) == 0
    _, tokenizer = load_huggingface(tmp_path)
    assert tokenizer is not None
    ids = tokenizer.encode("the cache")
    answer = checkpoints.load_reference(tmp_path, torch.float32).generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=6, do_sample=False
    )
    text = tokenizer.decode(answer[0].tolist())
    assert capsys.readouterr().out == printable(text) + "\n"


def test_a_folder_without_a_tokenizer_takes_no_text(tmp_path, capsys):
    checkpoints.save("qwen3", tmp_path)
    capsys.readouterr()  # transformers shows how it saves
    assert main(["generate", "the cache", "--model", str(tmp_path), *GREEDY]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "tokenizer" in captured.err


def test_without_transformers_it_names_the_extra(tmp_path, capsys, monkeypatch):
    checkpoints.save("qwen3", tmp_path)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find_spec(name))
    capsys.readouterr()  # transformers shows how it saves
    assert main(["generate", "the cache", "--model", str(tmp_path), *GREEDY]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.endswith(f"More kinds are read with the extra hf: {install_extra('hf')}\n")
