"""Names as people type them lead to the model's layers. The README of the model's page has them, or a thread does."""

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.tools.planning.models import load_model, model_names


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        ("Qwen/Qwen3.6-35B-A3B", "Qwen3.5 35B-A3B"),
        ("Qwen/Qwen3.6-27B", "Qwen3.5 27B"),
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3.5 35B-A3B"),
        ("Qwen/Qwen3.5-4B", "Qwen3.5 4B"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next 80B-A3B"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "Qwen3-Coder 480B-A35B"),
        ("Qwen/Qwen3-235B-A22B", "Qwen3 235B-A22B"),
        ("Qwen/Qwen3-32B", "Qwen3 32B"),
        ("qwen3-8b", "Qwen3 8B"),
        ("Qwen/Qwen3-0.6B", "Qwen3 0.6B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5 7B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1 8B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama 3.1 70B (3.3 70B, too)"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama 3 8B"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "Llama 4 Scout"),
        ("google/gemma-3-27b-it", "Gemma 3 27B"),
        ("google/gemma-4-26B-A4B", "Gemma 4 26B-A4B"),
        ("openai/gpt-oss-120b", "gpt-oss 120b"),
        ("openai/gpt-oss-20b", "gpt-oss 20b"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3.2", "DeepSeek-V3.2"),
        ("deepseek-ai/DeepSeek-V4-Flash", "DeepSeek-V4-Flash"),
        ("zai-org/GLM-5.1", "GLM-5"),
        ("zai-org/GLM-5.2", "GLM-5.2"),
        ("moonshotai/Kimi-K2-Instruct", "Kimi K2"),
        ("moonshotai/Kimi-K2.6", "Kimi K2.5"),
        ("MiniMaxAI/MiniMax-M2.5", "MiniMax M2.5"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral 7B v0.3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral 8x7B"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "Mistral Nemo 12B"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Nemotron 3 Nano 30B-A3B"),
        ("CohereLabs/c4ai-command-r7b-12-2024", "Command R7B"),
    ],
)
def test_a_typed_name_is_found(typed: str, title: str) -> None:
    assert load_model(typed).title == title


def test_no_two_models_have_one_name() -> None:
    assert [load_model(name.upper()).title for name in model_names()] == [load_model(n).title for n in model_names()]
    assert len({load_model(name).title for name in model_names()}) == len(model_names())


@pytest.mark.parametrize(
    "typed", ["Qwen/Qwen3-8B-AWQ", "nvidia/GLM-5-NVFP4", "Qwen/Qwen3-32B-FP8", "llama-3.1-9b", "", "/"]
)
def test_a_quantized_or_unknown_model_is_not_taken_for_another(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights have another size, and its file may ask for another cache."""
    with pytest.raises(ConfigError, match="unknown model"):
        load_model(typed)
    assert main(["plan", typed]) == 2
    assert "config.json" in capsys.readouterr().err
