"""OpenAI's own Python client asks: what it understands, others will."""

import openai
import pytest

from mini_kv.tests.engine.huggingface import checkpoints
from mini_kv.tests.engine.huggingface.test_chat_and_untested import TEMPLATE
from mini_kv.tests.engine.huggingface.test_tokenizer import byte_level
from mini_kv.tests.serve.endpoint import TEXT, Endpoint, offline


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """An endpoint on a checkpoint that has learned how a chat is written, with random weights."""
    folder = tmp_path_factory.mktemp("chat")
    checkpoints.save("qwen3", folder, vocab_size=300)
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    endpoint = Endpoint(model=folder, served_model_name="chat", block_size=4)
    yield endpoint
    endpoint.end()


def client(endpoint, key="none"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{endpoint.port}/v1", api_key=key, max_retries=0)


def test_a_completion_whole_and_streamed(shared):
    with client(shared) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        whole = api.completions.create(model="tiny", prompt=TEXT, max_tokens=12, temperature=0, logprobs=1, n=2)
        chunks = list(
            api.completions.create(
                model="tiny",
                prompt=TEXT,
                max_tokens=12,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"top_k": 5},
            )
        )
    (right,) = offline([TEXT], max_tokens=12, temperature=0)
    assert [choice.text for choice in whole.choices] == [right.text] * 2
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == right.text
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 16


def test_a_chat_whole_and_streamed(chat):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    asked = {"model": "chat", "messages": messages, "max_completion_tokens": 6, "temperature": 0, "logprobs": True}
    with client(chat) as api:
        whole = api.chat.completions.create(**asked, top_logprobs=2)
        chunks = list(api.chat.completions.create(**asked, stream=True))
        again = api.chat.completions.create(**asked)
    choice = whole.choices[0]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == choice.message.content
    tokens = choice.logprobs.content
    assert len(tokens) == 6 and all(len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.top_logprobs[0].logprob == token.logprob for token in tokens)  # greedy: the likeliest
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_a_stream_that_is_closed_is_given_up(serve):
    endpoint = serve(step_ms=10)
    with client(endpoint) as api:
        stream = api.completions.create(model="tiny", prompt=TEXT, max_tokens=400, stream=True, temperature=0)
        next(iter(stream))
        stream.close()
    endpoint.wait(lambda: endpoint.num_held == 0)
    assert endpoint.engine.stats.num_generation_tokens < 400


def test_errors_arrive_as_the_clients_own(serve):
    endpoint = serve(keys=["a key of ann's".replace(" ", "-"), "a-key-of-bobs"], max_num_seqs=1, max_waiting=0)
    with client(endpoint, "wrong") as api, pytest.raises(openai.AuthenticationError, match="needs a valid key"):
        api.models.list()
    with client(endpoint, "a-key-of-bobs") as api:
        with pytest.raises(openai.BadRequestError, match=r"top_p is 2\.0") as caught:
            api.completions.create(model="tiny", prompt="a", top_p=2)
        assert caught.value.param == "top_p"
        with pytest.raises(openai.NotFoundError):
            api.completions.create(model="gpt-9", prompt="a")
        with pytest.raises(openai.RateLimitError, match="try again in a second"):
            api.completions.create(model="tiny", prompt="a", n=2)
