"""A folder with a Hugging Face checkpoint, as a model and a tokenizer. Nothing is ever downloaded.

    config.json                     sizes; which architecture it is
    model.safetensors               the weights, or several files and model.safetensors.index.json
    generation_config.json          may be missing: which tokens end a text
    tokenizer.json, ...             may be missing: then prompts are token ids

A tensor that does not fit is refused by name, before memory is allocated for it. transformers itself fills a missing
tensor with random numbers, ignores an unknown one, and prints a report about both. A model that was loaded like
that generates noise, and its user does not know why.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mini_kv.core.errors import ConfigError
from mini_kv.core.strict_json import check_file, read_object
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.hf.hf_model import HuggingFaceModel, check_config
from mini_kv.engine.hf.hf_tokenizer import HuggingFaceTokenizer
from mini_kv.engine.hf.tokenizer_patterns import KNOWN_PATTERNS, patterns_in
from mini_kv.engine.tokenizer import MAX_TOKENIZER_BYTES
from mini_kv.engine.weights_file import TensorHeader, check_finite, num_elements, read_header
from mini_kv.installer import install_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
"""A folder with one of these has a tokenizer."""
SETTINGS = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_OTHER_FILES = ("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json")
"""Further files that transformers reads if they exist."""
_MAX_INDEX_BYTES = 16 << 20
"""Largest index of a checkpoint that consists of several files."""
COUNTS = 1024
"""Settings that begin with num_ may be as large as that, or as the number of tensors: lists are made that long."""
SHOWN = 5
"""Names of tensors in an error, at most."""


def load_huggingface(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    untested: bool = False,
) -> tuple[HuggingFaceModel, HuggingFaceTokenizer | None]:
    """Return the model and the tokenizer of a checkpoint. The tokenizer is `None` if the folder has none.

    Reads safetensors only, because a pickled checkpoint may run any code. Runs no code from the folder.

    Args:
        folder: the checkpoint's folder on this machine.
        dtype: of weights, keys and values. `None`: the checkpoint's own.
        device: of the weights.
        untested: whether an architecture that the tests do not cover may be tried; see `HuggingFaceModel`.

    Raises:
        CheckpointError: the folder, its config, its weights or its tokenizer cannot work. The message names the file,
            and in it the setting or the tensors.
        ConfigError: transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(f"checkpoints of Hugging Face's form need the extra hf: {install_extra('hf')}")
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(folder, "is not a folder on this machine; mini_kv downloads nothing")
    config = read_object(folder / "config.json", CheckpointError)
    try:
        check_config(config, untested=untested)
    except ConfigError as error:
        raise CheckpointError(folder / "config.json", str(error)) from None
    _check_other_files(folder)
    weights, files = _find_weights(folder)
    header = {name: tensor for file in files for name, tensor in read_header(file).items()}
    _check_counts(folder / "config.json", config, max(COUNTS, len(header)))
    with _quiet():
        tokenizer = _load_tokenizer(folder)
        model = _load_weights(folder, weights, header, dtype)
    try:
        return HuggingFaceModel(model.to(torch.device(device)), untested=untested), tokenizer
    except ConfigError as error:
        raise CheckpointError(folder, str(error)) from None
    except Exception as error:  # its first token shows what its config has hidden so far
        raise CheckpointError(folder, f"does not compute: {_in_words(error)}") from error


def _check_other_files(folder: Path) -> None:
    """Check all files that transformers will read besides the weights."""
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CheckpointError(path, "is not a regular file")
    for name in SETTINGS:
        if (folder / name).exists():
            read_object(folder / name, CheckpointError)
    for name in _OTHER_FILES:
        if (folder / name).exists():
            check_file(folder / name, CheckpointError, MAX_TOKENIZER_BYTES, needed_for="tokens")
    if (folder / "tokenizer.json").exists():
        _check_patterns(folder / "tokenizer.json")


def _check_patterns(path: Path) -> None:
    """Raise if the tokenizer splits texts by an unknown pattern, because it might be slow."""
    for pattern in patterns_in(read_object(path, CheckpointError, MAX_TOKENIZER_BYTES)):
        if not isinstance(pattern, str) or pattern not in KNOWN_PATTERNS:
            raise CheckpointError(path, f"has the pattern {pattern!r}, which is not one of the known patterns")


def _check_counts(path: Path, settings: Mapping[str, Any], most: int) -> None:
    """Raise if a number of layers, heads or labels is so large that no model of these weights can have as many."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_counts(path, value, most)
        elif name.startswith("num_") and isinstance(value, int) and value > most:
            raise CheckpointError(path, f"{name} is {value}, and a model of so few weights has at most {most}")


def _find_weights(folder: Path) -> tuple[Path, list[Path]]:
    """Return the file to name in an error, and the files of the weights: one, or all that the index names."""
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if weights.is_file():
        return weights, [weights]
    if not index.is_file():
        pickled = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
        why = f" {pickled[0]} is pickled, which may run any code, so it is not read." if pickled else ""
        raise CheckpointError(folder, f"has no weights: neither {weights.name} nor {index.name}.{why}")
    return index, [folder / name for name in _files_in(index)]


def _files_in(index: Path) -> list[str]:
    """Return the names of the weights' files, all of which are there."""
    files = read_object(index, CheckpointError, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(index, "has no weight_map")
    names = sorted({str(name) for name in files.values()})
    strange = [repr(name) for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if strange:
        raise CheckpointError(index, f"names what is not a .safetensors file in this folder: {_some(strange)}")
    missing = [name for name in names if not index.with_name(name).is_file()]
    if missing:
        raise CheckpointError(index, f"names files that are missing: {_some(missing)}")
    return names


def _load_weights(
    folder: Path, weights: Path, header: dict[str, TensorHeader], dtype: torch.dtype | None
) -> "PreTrainedModel":
    """Return the model with every weight from the checkpoint. Raise `CheckpointError` if the weights do not fit."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):  # shapes, and no memory
            promised = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    except Exception as error:  # its checks may stumble over a number before they have looked at it
        raise CheckpointError(folder / "config.json", f"does not work: {_in_words(error)}") from error
    if promised > 2 * num_elements(header):  # a matrix more or less is named below; this much cannot be made up
        sizes = f"{promised:,} numbers, and the weights are {num_elements(header):,}"
        raise CheckpointError(folder / "config.json", f"describes a model of {sizes}")
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
    except Exception as error:
        raise CheckpointError(folder, f"transformers cannot load it: {_in_words(error)}") from error
    shapes = [f"{name} is {list(has)}, must be {list(wants)}" for name, has, wants in sorted(info["mismatched_keys"])]
    _refuse(weights, "of a wrong shape", shapes)
    _refuse(weights, "missing", sorted(info["missing_keys"]))
    _refuse(weights, f"unknown to {type(model).__name__}", sorted(info["unexpected_keys"]))
    _refuse(weights, "in error", sorted(info["error_msgs"]))
    check_finite(weights, [*model.named_parameters(), *model.named_buffers()])
    loaded: PreTrainedModel = model
    return loaded


def _refuse(weights: Path, what: str, names: list[str]) -> None:
    """Raise `CheckpointError` if `names` is not empty."""
    if names:
        raise CheckpointError(weights, f"does not fit config.json: tensors {what} ({len(names)}): {_some(names)}")


def _in_words(error: Exception) -> str:
    """Return the error's type and text, because the text of a `KeyError` is only a key."""
    return f"{type(error).__name__}: {error}"


def _some(names: list[str]) -> str:
    """Return the first few names."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _load_tokenizer(folder: Path) -> HuggingFaceTokenizer | None:
    """Return the folder's tokenizer, if it has one."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        return HuggingFaceTokenizer(
            AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        )
    except Exception as error:  # the library behind it raises plain Exception for a broken tokenizer.json
        raise CheckpointError(folder, f"its tokenizer cannot be used: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute transformers' reports and progress bars while we load. We raise errors instead."""
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
