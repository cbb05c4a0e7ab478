"""A neighbour's PIN, asked for through the endpoint: 24 probes find it where all share a cache, and none with keys.

Then a neighbour's document, found by the measured time alone.
"""

import random
import socket
import time
from statistics import median
from typing import Any

from starlette.routing import Route

from mini_kv.tests.engine.test_tenants import LETTER, PIN, STOP, guessed
from mini_kv.tools.serve.app import make_app
from mini_kv.tools.serve.tenants import Tenants

ANN, BOB = "the-key-of-ann", "the-key-of-bob"


def cached(endpoint, prompt, key=None, **body):
    """Ask for one token, and return what the answer and its stream say of the cache."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    status, _, answer = endpoint.ask({"prompt": prompt, "max_tokens": 1, "temperature": 0, **body}, headers=headers)
    assert status == 200, answer
    details = answer["usage"]["prompt_tokens_details"]
    return None if details is None else details["cached_tokens"]


def guess(endpoint, key=None, **body):
    return guessed(lambda prompt: cached(endpoint, prompt, key, **body))


def test_without_keys_a_stranger_finds_the_pin(serve):
    endpoint = serve(block_size=1)
    cached(endpoint, [*LETTER, *PIN, STOP])
    assert guess(endpoint) == (PIN, 24)


def test_with_keys_a_stranger_finds_nothing_whatever_salt_it_names(serve):
    endpoint = serve(keys=[ANN, BOB], block_size=1)
    cached(endpoint, [*LETTER, *PIN, STOP], ANN, cache_salt="letters")
    hits = endpoint.engine.kv_cache_manager.prefix_cache_stats
    for body in ({}, {"cache_salt": "letters"}, {"cache_salt": ANN}, {"cache_salt": "x" * 64}):
        before = hits.hits
        assert guess(endpoint, BOB, **body) == ([], 10)
        assert hits.hits - before == 9 * len(LETTER)  # its own beginning, from its second probe on: never Ann's digit


def test_one_tenant_of_several_finds_its_own_blocks_and_is_not_told_how_many(serve):
    endpoint = serve(keys=[ANN, BOB], block_size=1)
    assert [cached(endpoint, [*LETTER, *PIN], ANN) for _ in range(2)] == [None, None]
    assert endpoint.engine.kv_cache_manager.prefix_cache_stats.hits == len(LETTER) + len(PIN) - 1


DOCUMENTS = [[random.Random(number).randrange(200) for _ in range(400)] for number in range(4)]
"""Ann sends one of these each day, after the number of the day."""
ANNS = 2


def probe_each_day(endpoint, num_days, ann=None, bob=None):
    """Let Ann send her document each day, and Bob all four. Return per document the seconds and hits of his probes.

    A probe is cached, so it measures once. On another day no block is the same.
    """
    stats = endpoint.engine.kv_cache_manager.prefix_cache_stats
    seconds: list[list[float]] = [[] for _ in DOCUMENTS]
    hits: list[list[int]] = [[] for _ in DOCUMENTS]
    for day in range(num_days):
        cached(endpoint, [day, *DOCUMENTS[ANNS], STOP], ann)
        for number, document in enumerate(DOCUMENTS):
            hits_before, start = stats.hits, time.perf_counter()
            cached(endpoint, [day, *document, STOP], bob)
            seconds[number].append(time.perf_counter() - start)
            hits[number].append(stats.hits - hits_before)
    return seconds, hits


def test_without_keys_the_time_alone_reveals_a_neighbours_document(serve):
    """The median of each document over the days: a hit computes 2 tokens, a miss 402."""
    seconds, hits = probe_each_day(serve(block_size=16, num_blocks=4097), num_days=11)
    medians = [median(of_document) for of_document in seconds]
    assert medians.index(min(medians)) == ANNS
    assert [set(of_document) for of_document in hits] == [{400 if number == ANNS else 0} for number in range(4)]


def test_with_keys_every_document_takes_the_same_work(serve):
    """Counted, not measured: no probe has a hit, so the time depends on the machine only."""
    _, hits = probe_each_day(serve(keys=[ANN, BOB], block_size=16, num_blocks=4097), 3, ANN, BOB)
    assert [set(of_document) for of_document in hits] == [{0}] * 4


def test_where_there_are_several_tenants_no_page_shows_their_words(serve):
    endpoint = serve(keys=[ANN, BOB])
    assert [endpoint.get(path)[0] for path in ("/", "/events", "/story.json")] == [404] * 3


def test_salts_are_the_servers():
    """Other servers, other salts; a tenant's own are told apart, and no key and name make those of another pair."""
    one, other = Tenants([ANN, BOB]), Tenants([ANN, BOB])
    pairs = [(key, name) for key in (b"a", b"ab") for name in (None, "b", "c", "+")]
    salts = [tenants.cache_salt(key, name) for tenants in (one, other) for key, name in pairs]
    assert len(set(salts)) == 16 and all(len(salt) == 64 for salt in salts if salt is not None)
    assert one.cache_salt(b"a", "b") == one.cache_salt(b"a", "b")
    assert Tenants().cache_salt(None, "b") == "b"


def visit_every_route(endpoint, key=None):
    """Return the status and the answer of each route. Of a stream it is the beginning, with the first event."""
    app: Any = make_app(endpoint.service, None)
    routes = [route for route in app.routes if isinstance(route, Route)]
    visits = [(method, route.path_format.format(name="tiny")) for route in routes for method in route.methods or ()]
    answers = {}
    for method, path in visits:
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as client:
            given = "" if key is None else f"Authorization: Bearer {key}\r\n"
            client.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{given}Connection: close\r\n\r\n".encode())
            content, end = b"", b"\r\n\r\n" if method == "HEAD" else b"\ndata: {"
            while end not in content and (piece := client.recv(1 << 16)):
                content += piece
        answers[method, path] = (int(content.split()[1]), content.decode())
    return answers


def test_with_one_key_no_route_shows_a_text_without_it(serve, tmp_path):
    endpoint = serve(keys=[ANN], record=tmp_path / "story.json")
    said = endpoint.say("The diagnosis of Ann is hypertension", key=ANN).text
    answers = visit_every_route(endpoint)
    open_routes = [path for (method, path), (status, _) in answers.items() if (method, status) == ("GET", 200)]
    assert sorted(open_routes) == ["/", "/health", "/kv_story.js", "/metrics", "/page.js"]
    closed = {status for (_, path), (status, _) in answers.items() if path not in open_routes}
    assert closed == {401}
    assert not [path for (_, path), (_, content) in answers.items() if "diagnosis" in content or said in content]


def test_with_the_key_the_page_shows_the_texts(serve):
    endpoint = serve(keys=[ANN])
    endpoint.say("The diagnosis of Ann is hypertension", key=ANN)
    answers = visit_every_route(endpoint, ANN)
    assert "The diagnosis of Ann" in answers["GET", "/events"][1]
    assert answers["GET", "/story.json"][0] == 200
