"""Chats by the tokenizer's own template; untested architectures, let in after a comparison with themselves."""

import re

import pytest
import torch

from mini_kv import LLM, SamplingParams
from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.hf.hf_model import INTERFACE, HuggingFaceModel
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.prompt_tokens import PromptError
from mini_kv.tests.engine.huggingface import checkpoints
from mini_kv.tests.engine.huggingface.test_same_words import CUT, GREEDY
from mini_kv.tests.engine.huggingface.test_tokenizer import byte_level

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cache"}]
SAYS = SamplingParams(max_tokens=6, temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with a tokenizer that knows how a chat is written; its config gives it 64 positions."""
    folder = tmp_path_factory.mktemp("chat")
    checkpoints.save("qwen3", folder, vocab_size=300)
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def test_a_conversation_is_written_and_answered_as_by_transformers(folder):
    (output,) = LLM(folder).chat(HELLO, SAYS)
    tokenizer = byte_level()
    assert output.prompt == "<system>be brief<eos><user>the cache<eos><assistant>"
    assert output.prompt_token_ids == tokenizer.apply_chat_template(
        HELLO, chat_template=TEMPLATE, add_generation_prompt=True, return_dict=False
    )
    prompt = torch.tensor([output.prompt_token_ids])
    answer = checkpoints.load_reference(folder, torch.float32).generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False
    )
    assert output.outputs[0].token_ids == answer[0, prompt.shape[1] :].tolist()


def test_a_second_turn_finds_the_first_in_the_cache(folder):
    llm = LLM(folder, block_size=4)
    (first,) = llm.chat(HELLO[1:], SAYS)
    again = [*HELLO[1:], {"role": "assistant", "content": first.outputs[0].text}, {"role": "user", "content": "and"}]
    (second,) = llm.chat(again, SAYS)
    in_common = len("<user>the cache<eos><assistant>")
    assert second.prompt is not None and second.prompt[:in_common] == first.prompt
    assert second.num_cached_tokens is not None and second.num_cached_tokens >= len(first.prompt_token_ids) // 4 * 4


def test_several_conversations_a_template_of_ones_own_and_no_generation_prompt(folder):
    outputs = LLM(folder).chat(
        [HELLO, HELLO[1:]], SAYS, chat_template="{{ messages[-1].content }}|", add_generation_prompt=False, n=2
    )
    assert [output.prompt for output in outputs] == ["the cache|"] * 2
    assert [len(output.outputs) for output in outputs] == [2, 2]
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[1].token_ids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is list: it must be a list of messages, or of such lists, and not empty"),
        ("hello", "messages is str: it must be a list of messages, or of such lists, and not empty"),
        ([{"content": "hello"}], "message 0 is {'content': 'hello'}: it must have a role, and a content"),
        ([*HELLO, "hello"], "message 2 is 'hello': it must have a role, and a content"),
        ([{"role": "user", "content": 7}], "the content of message 0 is 7: it must be text"),
        ([*HELLO, HELLO[0]], "the chat template does not take these messages: system comes first"),
        ([{"role": "user", "content": "the cache " * 99}], "the model reads at most 64, answer included"),
    ],
)
def test_what_is_no_conversation_is_refused(messages, said, folder):
    with pytest.raises(PromptError, match=re.escape(said)):
        LLM(folder).chat(messages, SAYS)


def test_a_template_is_in_a_sandbox(folder):
    reads_python = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(PromptError, match="the chat template does not take these messages: access to attribute"):
        LLM(folder).chat(HELLO, SAYS, chat_template=reads_python)


def test_without_a_template_it_says_what_to_do(tmp_path):
    checkpoints.save("qwen3", tmp_path, vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="the tokenizer has no chat template: give chat_template, or call generate"):
        LLM(tmp_path).chat(HELLO, SAYS)


def test_a_chat_at_the_terminal(folder, capsys):
    capsys.readouterr()
    argv = ["generate", "the cache", "--model", str(folder), "--chat", "--temperature", "0", "--max-tokens", "6"]
    assert main(argv) == 0
    (right,) = LLM(folder).chat(HELLO[1:], SAYS)
    shown = "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in right.outputs[0].text.replace("\t", " "))
    assert capsys.readouterr().out == f"the cache\n{shown}\n"
    assert main(["generate", "the cache", "--chat"]) == 2
    assert capsys.readouterr().err == (
        "mini-kv generate: this is not a chat model: its tokenizer has no chat template\n"
    )


def test_what_a_template_says_when_it_refuses_reaches_the_terminal_as_text(tmp_path, capsys):
    checkpoints.save("qwen3", tmp_path, vocab_size=300)
    tokenizer = byte_level()
    tokenizer.chat_template = "{{ raise_exception('\x1b[2Jno \x07') }}"
    tokenizer.save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["generate", "hello", "--model", str(tmp_path), "--chat"]) == 2
    said = "mini-kv generate: the chat template does not take these messages: \ufffd[2Jno \ufffd\n"
    assert capsys.readouterr().err == said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite", "olmo3", "cohere2", "minicpm3"])
def test_an_untested_architecture_is_let_in_when_asked_and_says_what_transformers_says(name, tmp_path):
    checkpoints.save_untested(name, tmp_path)
    with pytest.raises(CheckpointError, match=r"is not supported. With --untested \(LLM: untested=True\) it is tried"):
        load_huggingface(tmp_path)
    prompts = checkpoints.make_prompts()
    right, gap = checkpoints.ask_transformers(tmp_path, torch.float32, prompts)
    assert gap > checkpoints.SMALLEST_GAP
    model, _ = load_huggingface(tmp_path, untested=True)
    outputs = LLMEngine(model, None, CUT).generate(prompts, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == right
    assert sum(output.num_cached_tokens or 0 for output in outputs) > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bloom", "BloomForCausalLM has 3 layers, and [] used attention"),
        ("nemotron", "this architecture's layers do not hand on what forward sends along"),
        ("gptj", "does not compute: RuntimeError"),
    ],
)
def test_one_that_keeps_its_past_in_its_own_way_is_refused_all_the_same(name, said, tmp_path):
    checkpoints.save_untested(name, tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        load_huggingface(tmp_path, untested=True)


class AddsToItsOwn(torch.nn.Module):
    """An attention that does more than it tells: with any function but ours it doubles what was found."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **more):
        found, weights = self.inner(*args, **more)
        return (found if self.inner.config._attn_implementation == INTERFACE else 2 * found), weights


def test_an_untested_one_whose_attention_does_more_than_it_tells_is_found_out(made):
    theirs = checkpoints.load_reference(made("llama").folder)
    theirs.model.layers[1].self_attn = AddsToItsOwn(theirs.model.layers[1].self_attn)
    with pytest.raises(ConfigError, match="its attention does more than it states: with ours the logits of 24 tokens"):
        HuggingFaceModel(theirs, untested=True)


def test_an_untested_one_whose_config_speaks_of_a_window_that_no_layer_asks_for_is_found_out(made):
    theirs = checkpoints.load_reference(made("llama").folder)
    theirs.config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ConfigError, match=r"its layers say \[False, False, False\] when asked for a window"):
        HuggingFaceModel(theirs, untested=True)
