"""`make sentences` draws fairly: the same of one seed, none of a table, a heading or a block of code."""

import importlib.util

import pytest
from mini_kv_book.places import ROOT


@pytest.fixture(scope="module")
def drawing():
    spec = importlib.util.spec_from_file_location("sentences", ROOT / ".ci/sentences.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = """# A title is no sentence

A block is free. Is it cached? See [the
queue](queue.md).

| a table | is none either |

```python
print("A line of code. And another one.")
```
"""


def test_sentences_of_a_page(drawing):
    assert list(drawing.sentences(PAGE)) == ["A block is free.", "Is it cached?", "See [the queue](queue.md)."]


@pytest.mark.slow
def test_one_seed_draws_one_sample_of_each_kind(drawing, capsys):
    drawing.main("7")
    first = capsys.readouterr().out
    drawing.main("7")
    assert capsys.readouterr().out == first
    drawing.main("8")
    assert capsys.readouterr().out != first
    heads = [line.split(":")[0] for line in first.splitlines() if line.startswith("## ")]
    assert heads == ["## docstrings", "## messages", "## lab pages", "## chapters"]
    assert sum("  " in line for line in first.splitlines()) == 200
