"""A short soak: many clients, good ones and bad ones."""

import re

import pytest

from mini_kv.dev.serve import main


@pytest.mark.slow
def test_many_clients_get_right_answers_and_leave_no_block_behind(capsys):
    assert main(["--clients", "16", "--seconds", "5", "--num-jobs", "60"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"wrong answers 0 of \d+, leaked blocks 0 of 96", out), out
