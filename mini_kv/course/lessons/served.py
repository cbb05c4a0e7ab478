"""A server for a chapter's cells: the one of `mini-kv serve`, on a free port of this machine, in a thread.

server = Served("--num-blocks", "97")
print(server.say("A block is free when"))     one request over a socket
server.end()
"""

import argparse
import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mini_kv.tools.serve.app import Service
from mini_kv.tools.serve.serve_command import add_arguments, make_service
from mini_kv.tools.serve.server import Server


class Reply(NamedTuple):
    """A server's answer to one request. The body is parsed if it is JSON, and bytes otherwise."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def text(self) -> str:
        """The generated text."""
        return str(self.body["choices"][0]["text"])

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were in the cache. `None`: the server does not report it."""
        details = self.body["usage"].get("prompt_tokens_details") or {}
        return details.get("cached_tokens")

    def __str__(self) -> str:
        if self.status != 200:
            return f"{self.status} {self.body['error']['message']}"
        usage = self.body["usage"]
        return f"{usage['prompt_tokens']} tokens, {self.cached_tokens} cached: {self.text!r}"


class Served:
    """A running server, with the arguments of `mini-kv serve`."""

    def __init__(
        self, *arguments: str, keys: Sequence[str] = (), change: Callable[[Service], Service] = lambda service: service
    ) -> None:
        """Start the server and wait until it listens.

        Args:
            arguments: of `mini-kv serve`.
            keys: one per tenant. Without keys every client is served.
            change: returns the service that runs, for another queue of a client for instance.
        """
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        self.service = change(make_service(parser.parse_args(arguments), list(keys)))
        self.server = Server(self.service)
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        with contextlib.redirect_stdout(io.StringIO()):  # the address, which is another one each time
            self._thread.start()
            while not self.server.started:
                if not self._thread.is_alive():
                    raise RuntimeError("the server did not start")
                time.sleep(0.002)
        self.port = self.server.port
        self.engine = self.service.engine

    def end(self) -> None:
        """End the server as TERM does, after its requests have finished."""
        self.server.should_exit = True
        self._thread.join()

    @property
    def num_held(self) -> int:
        """Number of blocks that requests hold."""
        pool = self.engine.kv_cache_manager.block_pool
        return len(pool.blocks) - 1 - pool.num_free_blocks

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        while not condition():
            time.sleep(0.002)

    def ask(
        self,
        body: Any = None,
        path: str = "/v1/completions",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
    ) -> Reply:
        """Send a request. A body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        payload = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        content: Any = answer.read()
        connection.close()
        with contextlib.suppress(ValueError):
            content = json.loads(content)
        return Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, content)

    def say(self, prompt: str, *, max_tokens: int = 8, key: str | None = None, **fields: Any) -> Reply:
        """Ask for the most likely text after a prompt."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self.ask({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}, headers=headers)

    def say_together(self, prompts: Iterable[str], **fields: Any) -> list[Reply]:
        """Request the texts after several prompts at the same time, each as a separate client."""
        replies: dict[str, Reply] = {}
        clients = [
            threading.Thread(target=lambda prompt=prompt: replies.update({prompt: self.say(prompt, **fields)}))
            for prompt in prompts
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return list(replies.values())

    def open(self, prompt: str, **fields: Any) -> socket.socket:
        """Begin a stream over a new socket, and return the socket. Closing it disconnects the client."""
        body = {"prompt": prompt, "temperature": 0, "stream": True, "ignore_eos": True, **fields}
        payload = json.dumps(body).encode()
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        return client
