"""A folder with a Hugging Face checkpoint, as a model and a tokenizer. Nothing is ever downloaded.

    config.json                     sizes; which architecture it is
    model.safetensors               the weights, or several files and model.safetensors.index.json
    generation_config.json          may be missing: which tokens end a text
    tokenizer.json, ...             may be missing: then prompts are token ids

What does not fit is refused by name. transformers itself fills a missing tensor with random numbers, ignores one that
it does not know, and prints a report about both. A model that was loaded like that writes noise, and nobody knows why.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mini_kv.core.errors import ConfigError
from mini_kv.engine.errors import CheckpointError, read_json
from mini_kv.engine.huggingface import HuggingFaceModel, check_config
from mini_kv.engine.huggingface_tokenizer import HuggingFaceTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
"""A folder with one of these has a tokenizer."""
SHOWN = 5
"""Names of tensors in an error, at most."""


def load_huggingface(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> tuple[HuggingFaceModel, HuggingFaceTokenizer | None]:
    """Return the model and the tokenizer of a checkpoint; no tokenizer if the folder has none.

    Reads safetensors only, since a pickled checkpoint may run any code, and runs no code that lies in the folder.

    Args:
        folder: where the checkpoint lies on this machine.
        dtype: of weights, keys and values; `None`: the checkpoint's own.
        device: where the weights go.

    Raises:
        CheckpointError: the folder, its config, its weights or its tokenizer cannot work; names the file, and in it the
            setting or the tensors.
        ConfigError: transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("checkpoints of Hugging Face's form need the extra hf: in a checkout, pip install -e '.[hf]'")
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(folder, "is not a folder on this machine; mini_kv downloads nothing")
    try:
        check_config(read_json(folder / "config.json"))
    except ConfigError as error:
        raise CheckpointError(folder / "config.json", str(error)) from None
    weights = _find_weights(folder)
    with _quiet():
        tokenizer = _load_tokenizer(folder)
        model = _load_weights(folder, weights, dtype)
    return HuggingFaceModel(model.to(torch.device(device))), tokenizer


def _find_weights(folder: Path) -> Path:
    """Return the file of the weights, or the index of several files that are all there."""
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if weights.is_file():
        return weights
    if not index.is_file():
        pickled = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
        why = f" {pickled[0]} is pickled, which may run any code, so it is not read." if pickled else ""
        raise CheckpointError(folder, f"has no weights: neither {weights.name} nor {index.name}.{why}")
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(index, "has no weight_map")
    missing = sorted({str(name) for name in files.values() if not (folder / str(name)).is_file()})
    if missing:
        raise CheckpointError(index, f"names files that are missing: {_some(missing)}")
    return index


def _load_weights(folder: Path, weights: Path, dtype: torch.dtype | None) -> "PreTrainedModel":
    """Return the model with every weight from the checkpoint, or refuse."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its checks may stumble over a number before they have looked at it
        raise CheckpointError(folder / "config.json", f"does not work: {_in_words(error)}") from error
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype or "auto",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported with the others, and refused below
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise CheckpointError(weights, f"cannot be read: {error}") from error
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(folder, f"transformers cannot load it: {_in_words(error)}") from error
    shapes = [f"{name} is {list(has)}, must be {list(wants)}" for name, has, wants in sorted(info["mismatched_keys"])]
    _refuse(weights, "of a wrong shape", shapes)
    _refuse(weights, "missing", sorted(info["missing_keys"]))
    _refuse(weights, f"unknown to {type(model).__name__}", sorted(info["unexpected_keys"]))
    _refuse(weights, "in error", sorted(info["error_msgs"]))
    loaded: PreTrainedModel = model
    return loaded


def _refuse(weights: Path, what: str, names: list[str]) -> None:
    """Raise if there is anything to complain about."""
    if names:
        raise CheckpointError(weights, f"does not fit config.json: tensors {what} ({len(names)}): {_some(names)}")


def _in_words(error: Exception) -> str:
    """Return the error with its kind; the text of a `KeyError` is only a key."""
    return f"{type(error).__name__}: {error}"


def _some(names: list[str]) -> str:
    """Return the first few names."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _load_tokenizer(folder: Path) -> HuggingFaceTokenizer | None:
    """Return the folder's tokenizer, if it has one."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return HuggingFaceTokenizer(
            AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        )
    except Exception as error:  # the library behind it raises plain Exception for a broken tokenizer.json
        raise CheckpointError(folder, f"its tokenizer cannot be used: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute transformers' reports and progress bars while we load: what they would say, we raise."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
