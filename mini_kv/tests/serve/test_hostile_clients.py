"""Clients that send random bytes, random bodies and half requests leave no traceback and no block.

Three seconds; with MINI_KV_LONG=1 it is 300.
"""

import os

import pytest

from mini_kv.tests.serve.endpoint import offline
from mini_kv.tests.serve.hostile_clients import attack

SECONDS = 300 if os.environ.get("MINI_KV_LONG") else 3


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[], ["the-key-of-ann"]])
def test_no_bytes_of_a_client_leave_a_traceback(serve, capsys, caplog, keys):
    endpoint = serve(keys=keys)
    seen = attack(endpoint.port, SECONDS / 2, seed=len(keys))
    endpoint.wait(lambda: endpoint.num_held == 0)
    log = capsys.readouterr().err + caplog.text  # uvicorn's, and asyncio's
    assert "Traceback" not in log, log[:5000]
    assert "HTTP/1.1 500" not in seen, seen
    assert len(seen) > 4, seen  # many kinds of refusals
    (right,) = offline(["A block is free"], max_tokens=8, temperature=0)
    assert endpoint.say("A block is free", max_tokens=8, key=keys[0] if keys else None).text == right.text
