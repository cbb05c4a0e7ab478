"""Sends requests one at a time to a running server, vLLM's or another one, and records its events.

Several clients at once would make the server's steps depend on the times of arrival, and no run could be repeated.
"""

import json
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

from mini_kv.dev.vllm_parity.workload import Run, Work
from mini_kv.tools.serve.attach import Subscriber
from mini_kv.tools.serve.kv_events import AnyEvent, KVEventBatch
from mini_kv.tools.serve.mirror import Follower, Mirror

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends the body of a completion, and returns the answer's."""
_QUIET_S = 0.5
"""Seconds without a batch after which all batches have arrived."""


def ask_at(url: str) -> Ask:
    """Return a function that sends prompts to the server at `http://HOST:PORT`. It raises `OSError`."""

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        content = json.dumps(body).encode()
        request = Request(f"{url}/v1/completions", content, {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    return ask


def live_run(work: Work, ask: Ask, subscriber: Subscriber, model: str) -> tuple[Run, Mirror]:
    """Return the server's answers and events, and the mirror of its cache. Its cache must be empty at the beginning.

    Raises `RuntimeError` if events are missing: then there is nothing to compare.
    """
    batches: list[list[AnyEvent]] = []

    def note(number: int, batch: KVEventBatch) -> None:
        batches.append(batch.events)

    follower = Follower(Mirror(), subscriber.replay, note)
    tokens, cached = [], []
    for prompt, most in zip(work.prompts, work.max_tokens, strict=True):
        body = {"model": model, "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": True}
        answer = ask(body | {"return_token_ids": True})
        tokens.append(answer["choices"][0]["token_ids"])
        cached.append((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        while (frames := subscriber.hear(0.0)) is not None:
            follower.receive(frames)
    while (frames := subscriber.hear(_QUIET_S)) is not None:
        follower.receive(frames)
    follower.catch_up()
    if follower.mirror.gaps:
        raise RuntimeError(f"some events are missing: {follower.mirror.gaps[-1]}; add --replay")
    return Run("the server", tokens, cached, batches), follower.mirror
