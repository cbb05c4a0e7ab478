"""The longest request of a model, from its config.json.

Source: vLLM 0.33, `_get_and_verify_max_len` (config/model.py). It was called with each case of the tests.
"""

from collections.abc import Iterator
from typing import Any

from mini_kv.tools.planning.config_file import Config, short

LENGTHS = (
    "max_position_embeddings",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Fields with a length. The smallest counts."""
SCALED = {"longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "telechat3-yarn"}
"""Kinds of rotation whose files say the length after scaling: `factor` is not applied again."""
NO_LENGTH = 2048
"""vLLM's length for a file that says none."""


def read_lengths(config: Config) -> dict[str, int | None]:
    """Return the longest request that vLLM plans for by default, and the longest that it lets a caller ask for.

    Both are the file's length in tokens, scaled by the rotation's factor if it is not scaled yet. With `longrope` the
    default is the length before scaling, since short requests would suffer. A file without a length has no limit.

        max_position_embeddings 32768, no scaling                     32,768
        max_position_embeddings 32768, linear or dynamic, factor 4   131,072
        max_position_embeddings 32768, yarn, factor 4                 32,768    vLLM takes it for scaled already
        model_max_length beside it                                    that one  (Command R)

    Raises `ConfigError` for a length or a factor that is not a number.
    """
    lengths = [config.integer(name) for name in LENGTHS if config.get(name) is not None]
    length = min(lengths, default=NO_LENGTH)
    if config.get("model_max_length") is not None:
        length = config.integer("model_max_length")
    rotations = list(_rotations(config))
    factors = [rotation.get("factor") for rotation in rotations if _kind(rotation) not in SCALED]
    factor = next((factor for factor in reversed(factors) if factor is not None), 1)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1e6:
        raise config.error(f"the factor of the rotation is {short(factor)}, it must be a number above 0")
    limit = default = length if "gemma3" in str(config.model_type) else int(length * factor)
    is_long = any(_kind(rotation) == "longrope" for rotation in rotations)
    if is_long and config.get("original_max_position_embeddings") is not None:
        default = config.integer("original_max_position_embeddings")
    has_length = bool(lengths) or config.get("model_max_length") is not None
    return {"max_model_len": default, "max_model_len_limit": limit if has_length else None}


def _rotations(config: Config) -> Iterator[dict[str, Any]]:
    """Yield the rotation's settings: one object, or one for each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = config.get(name)
        if isinstance(settings, dict):
            inner = [value for value in settings.values() if isinstance(value, dict)]
            yield from inner or [settings]


def _kind(rotation: dict[str, Any]) -> str:
    kind = str(rotation.get("rope_type", rotation.get("type", "default")))
    return "longrope" if kind == "su" else kind  # its first name
