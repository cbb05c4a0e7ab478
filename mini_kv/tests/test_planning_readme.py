"""The README of `mini_kv/tools/planning`: each answer is what its command prints."""

import re
import shlex
from pathlib import Path

import pytest

from mini_kv.cli import main

README = (Path(__file__).parents[1] / "tools/planning/README.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"```bash\nmini-kv (.*)\n```\n\n```text\n((?:.*\n)*?)```", README)


@pytest.mark.parametrize(("command", "answer"), QUESTIONS)
def test_an_answer_is_printed(command: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split(command))
    captured = capsys.readouterr()
    assert answer in captured.out + captured.err
