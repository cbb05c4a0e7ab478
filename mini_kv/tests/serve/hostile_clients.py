"""Clients that send what nobody should: random bytes, random bodies, half a request. Standard library only.

    seed --> random clients, one connection each --> the server's statuses, to be counted

A client sends its bytes in a few pieces, reads a part of the answer or none, and leaves, often by a reset.
"""

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from mini_kv.tools.serve.protocol import LABELS, NOT_HERE


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


PATHS = ["/v1/completions"] * 8 + ["/v1/chat/completions"] * 4
PATHS += words("/v1/models /v1/models/tiny /health /metrics / /events /story.json /page.js /%ff%00/.. *")
FIELDS = [*NOT_HERE, *LABELS, "\ud800", ""]
FIELDS += words("prompt messages model max_tokens max_completion_tokens logprobs top_logprobs temperature top_p min_p")
FIELDS += words("top_k seed min_tokens stop stop_token_ids ignore_eos stream stream_options n cache_salt")
VALUES: list[Any] = [None, True, 0, 1, 3, -1, 2.5, 10**30, 1e308, "", "a", "tiny", "\ud800", "\0", "a" * 3000]
VALUES += [[], ["a"], [5], [[5, 6]], [""], {}, {"include_usage": True}, [[[[[]]]]]]
VALUES += [[{"role": "user", "content": "a"}], [{"role": 7}]]
HEADERS = [""] * 9 + ["Expect: 100-continue\r\n", "Connection: close\r\n", "Upgrade: h2c\r\nConnection: upgrade\r\n"]


def random_bytes(rng: random.Random) -> bytes:
    """Return bytes of any kind, or of HTTP's own letters."""
    letters = rng.choice([bytes(range(256)), b"GET /\r\n: HTTP1.0", b"\r\n\0 "])
    return bytes(rng.choices(letters, k=rng.randrange(1, 300)))


def random_body(rng: random.Random) -> bytes:
    """Return a body: JSON with fields of the protocol and values of any kind, sometimes a good request, or bytes."""
    if rng.random() < 0.2:
        return random_bytes(rng)
    fields: dict[str, Any] = {"prompt": "A block is free", "max_tokens": rng.randrange(1, 40), "temperature": 0}
    fields |= {"stream": True} if rng.random() < 0.3 else {}
    fields |= {rng.choice(FIELDS): rng.choice(VALUES) for _ in range(rng.choice([0, 0, 1, 1, 2, 6]))}
    return json.dumps(fields).encode()


def random_request(rng: random.Random) -> bytes:
    """Return a request with a head and a body, which may contradict each other."""
    body = random_body(rng)
    method = rng.choice(["POST"] * 6 + ["GET", "HEAD", "PUT", "OPTIONS", "TRACE", "\x7f"])
    host = rng.choice(["localhost"] * 8 + ["evil.example", ""])
    kind = rng.choice(["application/json"] * 8 + ["text/plain", "\xff"])
    head = f"{method} {rng.choice(PATHS)} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
    head += rng.choice(HEADERS)
    if rng.random() < 0.2:
        chunks = [body[at : at + 50] for at in range(0, len(body), 50)]
        sizes = [rng.choice([f"{len(chunk):x}"] * 6 + ["fffffff", "-1", "x"]) for chunk in chunks]
        sent = b"".join(size.encode() + b"\r\n" + chunk + b"\r\n" for size, chunk in zip(sizes, chunks, strict=True))
        return (head + "Transfer-Encoding: chunked\r\n\r\n").encode("latin-1") + sent + rng.choice([b"0\r\n\r\n", b""])
    length = rng.choice([len(body)] * 8 + [len(body) + 9, max(len(body) - 9, 0), 10**18, "x", -1])
    return f"{head}Content-Length: {length}\r\n\r\n".encode("latin-1") + body


def damaged(rng: random.Random, sent: bytes) -> bytes:
    """Return the bytes with one change: cut, a byte replaced, or a piece repeated."""
    at, end = sorted(rng.choices(range(len(sent) + 1), k=2))
    return rng.choice([sent[:at], sent[:at] + bytes([rng.randrange(256)]) + sent[at + 1 :], sent[:end] + sent[at:]])


def one_client(port: int, rng: random.Random) -> str:
    """Send one connection's bytes. Return the status of the first answer, or "" if none was read."""
    sent = b"".join(random_request(rng) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    how = rng.random()
    sent = random_bytes(rng) if how < 0.15 else damaged(rng, sent) if how < 0.45 else sent
    status = ""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5) as client:
        for piece in (sent[: len(sent) // 2], sent[len(sent) // 2 :]):
            client.sendall(piece)
            time.sleep(rng.choice([0, 0, 0.002]))
        if rng.random() < 0.4:  # a close that throws away what was not read: the server's next write fails
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if rng.random() < 0.6:
            status = client.recv(rng.choice([20, 20, 5000]))[:12].decode("latin-1")
    return status


def attack(port: int, seconds: float, seed: int, num_threads: int = 4) -> Counter[str]:
    """Let clients attack for this time. Return how many of them read each status."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def clients(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        while time.monotonic() < end:
            seen[one_client(port, rng)] += 1

    threads = [threading.Thread(target=clients, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen
