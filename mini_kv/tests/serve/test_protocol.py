"""The fields of a request: each is honoured, refused by its name, or a label that asks for nothing."""

import pytest

from mini_kv.tools.serve.protocol import LABELS, NOT_HERE, Fields, RequestError, read_chat, read_completion, read_json

COMPLETION = {"prompt": "a"}
CHAT = {"messages": [{"role": "user", "content": "a"}]}


class Watched(Fields):
    """Fields that note which of them are read."""

    def __init__(self, data):
        super().__init__(data)
        self.names = []

    def take(self, name):
        self.names.append(name)
        return super().take(name)


def names_that_are_read(read, body):
    fields = Watched(body)
    read(fields)
    return fields.names


EVERY_FIELD = [
    (read, body, name)
    for read, body in ((read_completion, COMPLETION), (read_chat, CHAT))
    for name in [*names_that_are_read(read, body), *NOT_HERE]
]


@pytest.mark.parametrize(("read", "body", "name"), EVERY_FIELD)
def test_a_field_is_honoured_or_refused_by_its_name(read, body, name):
    """No field takes this object, so a field that accepts it would be ignored."""
    with pytest.raises(RequestError) as caught:
        read(Fields({**body, name: {"a field of": "nobody"}}))
    assert caught.value.param == (name if name != "messages" else "messages[0].role")


@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_label_is_accepted(name):
    assert read_completion(Fields({**COMPLETION, name: "ann"})) == read_completion(Fields(COMPLETION))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"request_id": "mine"}, "request_id"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "a", "image_url": "b"}]}]}, "messages[0].content"),
    ],
)
def test_what_an_answer_could_not_follow_is_refused(change, param):
    with pytest.raises(RequestError) as caught:
        read_chat(Fields({**CHAT, **change}))
    assert caught.value.param == param


def test_two_names_of_one_limit_may_agree():
    assert read_chat(Fields({**CHAT, "max_tokens": 3, "max_completion_tokens": 3})).max_tokens == 3


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (rb'{"\ud800": 1}', r"\ud800", r"'\ud800' has '\ud800', which is half of a character"),
        (rb'{"prompt": "a \uDFFF"}', "prompt", r"'prompt' has '\udfff', which is half of a character"),
        (rb'{"stop": [{"a": "\ud83d"}]}', "stop", r"'stop' has '\ud83d', which is half of a character"),
        (b'{"prompt": "\xed\xa0\x80"}', None, "the body is not JSON: 'utf-8' codec can't decode"),
        (b"\xff\xfe\x00", None, "the body is not JSON"),
        (b'{"prompt": "a", "top_p": NaN}', None, "the body is not JSON: NaN is not a number of JSON"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", None, "the body is not JSON"),
        (b'{"n": 1, "n": 2}', None, "the body is not JSON: an object has the key 'n' twice"),
        (b'{"prompt": ' + b"[" * 65 + b"]" * 65 + b"}", None, "brackets are nested more than 64 deep"),
    ],
)
def test_a_body_that_means_nothing_or_two_things_is_refused(body, param, message):
    with pytest.raises(RequestError) as caught:
        read_json(body)
    assert (caught.value.param, message in caught.value.message) == (param, True), caught.value.message


def test_a_character_of_two_halves_is_a_character():
    assert read_json(rb'{"prompt": "\ud83d\ude00"}').take("prompt") == "\N{GRINNING FACE}"
