"""A real server on a free loopback port, in a thread of this process, and the plainest of clients."""

import contextlib
import http.client
import json
import socket
import threading
import time
from argparse import Namespace
from dataclasses import replace

from mini_kv import LLM, SamplingParams
from mini_kv.events.debug import leak_report
from mini_kv.serve.engine_loop import Mailbox
from mini_kv.serve.serve_command import make_service
from mini_kv.serve.server import Server

TEXT = "A block is free when no request holds it, and the cache remembers"
OPTIONS = {
    "model": None,
    "served_model_name": None,
    "dtype": "auto",
    "labs": None,
    "windows": False,
    "num_blocks": None,
    "block_size": None,
    "max_num_seqs": 128,
    "max_waiting": 256,
    "no_page": False,
    "step_ms": 0,
    "record": None,
}


class Endpoint:
    """The server, as `mini-kv serve` makes it; `keys` are those of its tenants."""

    def __init__(self, keys=(), before=lambda service: None, make_mailbox=Mailbox, **options):
        made = make_service(Namespace(**{**OPTIONS, **options}), list(keys))
        self.service = replace(made, make_mailbox=make_mailbox)
        before(self.service)
        self.server = Server(self.service)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive()
            time.sleep(0.002)
        self.port = self.server.port
        self.engine = self.service.engine

    def end(self):
        """End it as TERM does, and look whether a block is still held."""
        self.server.should_exit = True
        self._thread.join()
        assert self.num_held == 0
        assert leak_report(self.engine.kv_cache_manager, {}) == ""
        assert not self.engine.has_unfinished_requests and not self.engine.scheduler.requests

    @property
    def num_held(self):
        pool = self.engine.kv_cache_manager.block_pool
        return len(pool.blocks) - 1 - pool.num_free_blocks

    def wait(self, condition):
        """Wait until it is so; the test's own time limit is the longest wait."""
        while not condition():
            time.sleep(0.002)

    def ask(self, body=None, path="/v1/completions", headers=(), method="POST"):
        """Send a request; return status, headers and body, which is read from JSON if it is that."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        payload = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, payload, {"Content-Type": "application/json", **dict(headers)})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        with contextlib.suppress(ValueError):
            content = json.loads(content)
        return answer.status, answer.headers, content

    def get(self, path, **options):
        return self.ask(None, path, method="GET", **options)

    def text(self, **body):
        """Return the text of one answer that must be a good one."""
        status, _, answer = self.ask({"prompt": TEXT, "temperature": 0, **body})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def events(self, **body):
        """Return the events of a stream."""
        status, headers, content = self.ask({"prompt": TEXT, "temperature": 0, "stream": True, **body})
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), content
        lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def open(self, **body):
        """Begin a stream over a socket of its own, and return the socket."""
        payload = json.dumps({"prompt": TEXT, "temperature": 0, "stream": True, "ignore_eos": True, **body}).encode()
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        return client


def offline(prompts, n=1, llm=None, **params):
    """Return what the engine says without a server."""
    found = (llm or LLM(num_blocks=129, block_size=8)).generate(prompts, SamplingParams(**params), n=n)
    return [sample for output in found for sample in output.outputs]
