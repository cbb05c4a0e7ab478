"""Tiny random checkpoints, and what transformers itself says when it is asked to go on.

Twenty prompts of four families. Each prompt of a family is the beginning of the next one:

    family 0    |5|   |14|   |21|   |30|   |37| tokens          so most of them share blocks with others

The weights are random and large, so that every answer differs and no two candidates for a token come close.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE, NUM_NEW_TOKENS = 96, 8
LENGTHS, NUM_FAMILIES = (5, 14, 21, 30, 37), 4
WINDOW = 8
SMALLEST_GAP = 1e-4
"""Between the two best logits, wherever a token was chosen. Norms are computed in float32, so errors are below 1e-5."""
DTYPES = dict.fromkeys(
    ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "gemma3"), torch.float64
)
DTYPES |= dict.fromkeys(("olmo2", "smollm3", "phi3", "gpt2"), torch.float64)
DTYPES["gemma3n_text"] = torch.float64
WITH_EXPERTS = ("gpt_oss", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "minimax")
DTYPES |= dict.fromkeys(WITH_EXPERTS, torch.float32)  # transformers' experts do no float64

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EYES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
"""Of a model that also reads pictures."""
HYBRID = ["sliding_attention", "full_attention", "sliding_attention"]
UNTIED = {"tie_word_embeddings": False}
"""A random model with one matrix for embedding and logits likes to repeat what it has just read."""
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 2,
}
"""12 + 4 numbers per token and layer, where four heads would keep 4 * (8 + 4 + 6); values are shorter than keys."""
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma": {},
    "gemma2": {
        "sliding_window": WINDOW,
        "layer_types": HYBRID,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 1.0,
        **UNTIED,
    },
    "gemma3_text": {"sliding_window": WINDOW, "layer_types": HYBRID, "query_pre_attn_scalar": 16, **UNTIED},
    "gemma3": {"sliding_window": WINDOW, "layer_types": HYBRID, "query_pre_attn_scalar": 16, **UNTIED},
    "gpt_oss": {
        "sliding_window": WINDOW,
        "layer_types": HYBRID,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 10_000.0,
        },
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
    },
    "olmo2": {},
    "smollm3": {"no_rope_layers": [1, 0, 1], "use_sliding_window": False},
    "phi3": {"sliding_window": WINDOW, "partial_rotary_factor": 0.5},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "deepseek_v2": LATENT | {"q_lora_rank": None, "first_k_dense_replace": 3},
    "deepseek_v3": LATENT
    | {"q_lora_rank": 12, "first_k_dense_replace": 1, "n_routed_experts": 4, "n_group": 2, "topk_group": 1},
    "gemma3n_text": {
        "num_hidden_layers": 5,
        "layer_types": [*HYBRID, "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "sliding_window": WINDOW,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        **UNTIED,
    },
    "minimax": {
        "num_key_value_heads": 4,
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "block_size": 4,
    },
}
"""What each adds to the sizes."""


@dataclass(frozen=True, slots=True)
class Made:
    """A checkpoint, prompts, and what transformers says to them."""

    folder: Path
    dtype: torch.dtype
    prompts: list[list[int]]
    answers: list[list[int]]
    smallest_gap: float


def make(name: str, folder: Path) -> Made:
    """Write a checkpoint and ask transformers' own `generate` to go on, greedily."""
    save(name, folder)
    prompts = make_prompts()
    answers, gap = ask_transformers(folder, DTYPES[name], prompts)
    return Made(folder, DTYPES[name], prompts, answers, gap)


def save(name: str, folder: Path, **changes: Any) -> None:
    """Write a checkpoint of that architecture with random weights."""
    sizes = SIZES | ARCHITECTURES[name] | changes
    if name == "gemma3":  # the text model's sizes are one level down
        sizes = {"text_config": sizes, "vision_config": EYES, "image_token_index": VOCAB_SIZE, **UNTIED}
    _save(name, folder, sizes)


def save_untested(name: str, folder: Path) -> None:
    """Write one of an architecture that is not in `SUPPORTED`."""
    more = {"olmo3": {"sliding_window": WINDOW}, "cohere2": {"sliding_window": WINDOW}, "minicpm3": LATENT}
    _save(name, folder, SIZES | more.get(name, {}))


def _save(name: str, folder: Path, sizes: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **sizes)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def make_prompts() -> list[list[int]]:
    """Return the prompts, the shortest ones first."""
    generator = torch.Generator().manual_seed(2)
    families = torch.randint(0, VOCAB_SIZE, (NUM_FAMILIES, max(LENGTHS)), generator=generator).tolist()
    return [family[:length] for length in LENGTHS for family in families]


def ask_transformers(folder: Path, dtype: torch.dtype, prompts: list[list[int]]) -> tuple[list[list[int]], float]:
    """Return the answers, and the smallest gap of the two best logits. One length makes one batch: no padding."""
    model = load_reference(folder, dtype)
    answers: list[list[int]] = []
    gap = float("inf")
    for start in range(0, len(prompts), NUM_FAMILIES):
        batch = torch.tensor(prompts[start : start + NUM_FAMILIES])
        output = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=NUM_NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        answers += output.sequences[:, batch.shape[1] :].tolist()
        best, second = torch.stack(output.logits).topk(2).values.unbind(-1)
        gap = min(gap, (best - second).min().item())
    return answers, gap


def load_reference(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    """Return transformers' own model, its attention untouched."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    if model.config.model_type == "gemma2":
        model.set_attn_implementation("eager")  # transformers 5.17 takes sdpa, which forgets the soft cap
    return model
