"""Answers the page "Play": one message from the page, one answer.

`kv_lab_worker.js` loads this file into Pyodide and calls `answer`. The page's `kv_runner.js` computes the steps.
"""

import json
from dataclasses import fields
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.course.lessons.play import Levers, Play, make_play

BOXES = ("a", "b", "c")
MODELS = {"tiny": "each layer sees all tokens", "tiny_windows": "two of three layers see 32 tokens"}
"""The small models of `mini_kv/engine`, with their layers in words."""
_plays: list[Play] = []
"""The engine of the page, or none yet."""


def answer(asked: str) -> str:
    """Carry out one message and return the answer as JSON: `{"error": ...}` if it was refused.

    The messages, as JSON, by their field `do`: `start` with `fields` (`model` and levers), `send` with `box` and
    `words`, `stop` and `leave` with `box`, `plan`, `take` with `tokens`, `tell`, `story`.
    """
    message: dict[str, Any] = json.loads(asked)
    try:
        return json.dumps(_done(message))
    except ConfigError as error:
        return json.dumps({"error": str(error)})


def _done(message: dict[str, Any]) -> dict[str, Any]:
    if message["do"] == "start":
        _plays[:] = [_started(message["fields"])]
        return {"groups": _plays[0].groups}
    (play,) = _plays
    match message["do"]:
        case "send":
            play.send(message["box"], message["words"])
        case "stop":
            play.stop(message["box"])
        case "leave":
            play.leave(message["box"])
        case "plan":
            return {"plan": play.plan()}
        case "take":
            play.take(message["tokens"])
        case "tell":
            return play.telling()
        case "story":
            return {"story": play.live.recorded()}
    return {}


def problem(given: dict[str, str]) -> str:
    """Return the error of a case of the page, its fields and texts, or an empty string."""
    known = {"model", *BOXES, *(lever.name for lever in fields(Levers))}
    if unknown := sorted(set(given) - known):
        return f"unknown fields {unknown}; there are: {', '.join(sorted(known))}"
    try:
        play = _started(given)
        for name in BOXES:
            if name in given:
                play.send(name, given[name])
    except ConfigError as error:
        return str(error)
    return ""


def _started(given: dict[str, str]) -> Play:
    model = given.get("model", "tiny")
    if model not in MODELS:
        raise ConfigError(f"model is {model!r}, it must be one of {', '.join(MODELS)}")
    return make_play(model, Levers.of(given))
