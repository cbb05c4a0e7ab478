"""Lets vLLM 0.33 plan the cache of published models, from `config.json` on, and writes down what it planned.

A tool for maintainers, never part of CI: see record.py for the environment; this one also needs what vLLM's model
classes import: requirements-planning.txt. From the top folder:

    /tmp/vllm-env/bin/python -m mini_kv.dev.recorders.record_planning

vLLM builds each model's layers, picks their attention backends, aligns the blocks, groups the layers and divides the
memory, with its own code. It needs no GPU for that, but it asks for one, and it imports compiled kernels. So this file
answers as an H100 would (`H100`), and hands out empty modules in place of the kernels (`Kernels`). Weights and buffers
are on PyTorch's "meta" device, which has shapes and no memory. A model whose class cannot be built so is reported, and
gets no row.
"""

import contextlib
import importlib.machinery
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_KIMI_K3_GEMM_AR": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}

import torch  # type: ignore[import-not-found, unused-ignore]
import transformers.utils.import_utils  # type: ignore[import-not-found, unused-ignore]

KERNELS = (
    "vllm._C",
    "vllm._moe_C",
    "vllm.vllm_flash_attn",
    "vllm._flashmla",
    "vllm._flashkda_C",
    "deep_gemm",
    "torchvision",
)


class Kernels(ModuleType):
    """A module of compiled kernels without the kernels: each name in it is there, and does nothing."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernels(name)

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class KernelFinder:
    """Finds these modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.startswith(KERNELS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Kernels:
        module = Kernels(spec.name)
        module.is_fa_version_supported = lambda version, *_: version in (2, 3)  # type: ignore[attr-defined]
        module.fa_version_unsupported_reason = lambda version, *_: None if version in (2, 3) else "no"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class Idle:
    """A CUDA stream or event that nothing runs on."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Operators:
    """The operators of a library that is not loaded, in front of those that Python has registered."""

    def __init__(self, registered: Any) -> None:
        self.registered = registered

    def __getattr__(self, name: str) -> Any:
        with contextlib.suppress(AttributeError):
            return getattr(self.registered, name)
        return Kernels(name)


transformers.utils.import_utils.is_torchvision_available()  # remembered: asked later, our module would say yes
sys.meta_path.insert(0, KernelFinder())
library = torch.library.Library("_C", "FRAGMENT")
for name in ("block_fp8", "fp8", "fp4"):
    library.define(f"cutlass_scaled_mm_supports_{name}(int capability) -> bool")
    library.impl(f"cutlass_scaled_mm_supports_{name}", lambda capability: False, "CompositeExplicitAutograd")
cuda: Any = torch.cuda
cuda.Stream, cuda.Event = type("Stream", (Idle,), {}), type("Event", (Idle,), {})
cuda.current_device = lambda: "meta"
cuda.current_stream = lambda *_: None
cuda.get_device_capability = lambda *_: (9, 0)
cuda.get_device_name = lambda *_: "NVIDIA H100"
cuda.get_device_properties = lambda *_: SimpleNamespace(
    multi_processor_count=132, total_memory=80 * 2**30, name="NVIDIA H100", major=9, minor=0
)

import vllm.platforms  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.platforms.cuda import CudaPlatformBase  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # type: ignore[import-not-found, unused-ignore]  # noqa: E402


class H100(CudaPlatformBase):  # type: ignore[misc]
    """What vLLM asks of a GPU before it plans."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "NVIDIA H100"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 * 2**30

    @classmethod
    def is_fully_connected(cls, device_ids: list[int]) -> bool:
        return True

    @classmethod
    def device_count(cls) -> int:
        return 8


vllm.platforms._current_platform = H100()

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from torch.overrides import TorchFunctionMode  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from torch.testing._internal.distributed.fake_pg import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    FakeStore,
)
from transformers import AutoConfig, LlamaConfig  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from transformers.models.auto.modeling_auto import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from vllm.config import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    get_layers_from_vllm_config,
    set_current_vllm_config,
)
from vllm.distributed.device_communicators.shm_broadcast import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    MessageQueue,
)
from vllm.distributed.parallel_state import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.model_executor.layers.attention_layer_base import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    AttentionLayerBase,
)
from vllm.model_executor.model_loader.utils import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    initialize_model,
)
from vllm.model_executor.models import registry  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.v1.attention.backends.utils import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    get_supported_kv_cache_layouts,
    resolve_kv_cache_layout,
)
from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    get_max_concurrency_for_kv_cache_config,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.single_type_kv_cache_manager import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    register_all_kvcache_specs,
)
from vllm.v1.worker.gpu_model_runner import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    GPUModelRunner,
)
from vllm.v1.worker.workspace import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    init_workspace_manager,
)

from mini_kv.dev.recorders.planning import MEMORY, PLANNING, planning_rows  # noqa: E402
from mini_kv.dev.recorders.versions import plan_cache  # noqa: E402

MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)  # it would wait for the other cards
registry._run_in_subprocess = lambda function: function()  # a new process would not be an H100
torch.accelerator.empty_cache = lambda: None
init_workspace_manager(torch.device("meta"))  # of which a kernel for latent vectors in 8 bits takes a share
for name in ("_C", "_moe_C", "_C_cache_ops"):
    setattr(torch.ops, name, Operators(getattr(torch.ops, name)))
operators: Any = torch.ops
operators._flashkda_C = SimpleNamespace(get_workspace_size=lambda *_: 0)


class NemotronNas(LlamaConfig):  # type: ignore[misc]
    """What a file of that type says. Its own class comes with the weights, as code, and has no other fields."""

    model_type = "nemotron-nas"

    def __init__(self, block_configs: tuple[dict[str, Any], ...] = (), **values: Any) -> None:
        self.block_configs = [
            SimpleNamespace(**{k: SimpleNamespace(**v) for k, v in block.items()}) for block in block_configs
        ]
        super().__init__(**{name: value for name, value in values.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "block_configs"}


AutoConfig.register("nemotron-nas", NemotronNas)


class OnMeta(TorchFunctionMode):
    """Puts on the meta device what a model class puts on the GPU by name."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "meta"
        return args[0].to("meta") if function is torch.Tensor.cuda else function(*args, **kwargs)


def plan(config: dict[str, Any], **flags: Any) -> dict[str, Any]:
    """Return what vLLM plans for this configuration with these engine arguments."""
    model_type = config.get("model_type")
    if "architectures" not in config and model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        config = {**config, "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]}
    folder = tempfile.mkdtemp()
    (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
    drafter = flags.get("speculative_config", {}).get("model")
    if drafter is not None:
        place = Path(tempfile.mkdtemp())
        (place / "config.json").write_text(json.dumps(drafter), encoding="utf-8")
        flags["speculative_config"] = flags["speculative_config"] | {"model": str(place)}
    arguments = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        disable_custom_all_reduce=True,
        dtype="bfloat16",
        **flags,
    )
    vllm_config = arguments.create_engine_config()
    size = flags.get("tensor_parallel_size", 1)
    with set_current_vllm_config(vllm_config):
        dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
        new_group = dist.new_group
        dist.new_group = lambda ranks=None, *_, backend=None, **more: new_group(ranks, backend="fake")
        init_distributed_environment(world_size=size, rank=0, local_rank=0, backend="fake")
        ensure_model_parallel_initialized(size, 1)
        torch.set_default_dtype(vllm_config.model_config.dtype)
        with torch.device("meta"), OnMeta():
            initialize_model(vllm_config=vllm_config)
            if vllm_config.speculative_config is not None:
                draft = vllm_config.speculative_config.draft_model_config
                initialize_model(vllm_config=vllm_config, model_config=draft, prefix="draft")
        vllm.platforms.current_platform.update_block_size_for_backend(vllm_config)
        vllm_config.validate_block_size()
        register_all_kvcache_specs(vllm_config)
        specs = GPUModelRunner.get_kv_cache_spec(SimpleNamespace(vllm_config=vllm_config, shared_kv_cache_layers={}))
        layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase).values()
        backends = list(dict.fromkeys(layer.get_attn_backend() for layer in layers))
        layouts = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
        resolve_kv_cache_layout(vllm_config, [layouts], specs.values())
        kv_cache_config = plan_cache(vllm_config, specs, MEMORY)
        return seen(vllm_config, kv_cache_config, [backend.get_name() for backend in backends])


def seen(vllm_config: Any, kv_cache_config: Any, backends: list[str]) -> dict[str, Any]:
    """Return the plan in numbers."""
    groups = kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return {
        "backends": backends,
        "max_model_len": vllm_config.model_config.max_model_len,
        "max_in_flight_tokens": vllm_config.max_in_flight_tokens,
        "block_size": vllm_config.cache_config.block_size,
        "scheduler_block_size": scheduler_block_size,
        "hash_block_size": hash_block_size,
        "groups": [
            [type(spec).__name__, spec.block_size, spec.page_size_bytes, len(group.layer_names)]
            for group, spec in zip(groups, specs, strict=True)
        ],
        "num_blocks": kv_cache_config.num_blocks,
        "max_concurrency": get_max_concurrency_for_kv_cache_config(vllm_config, kv_cache_config),
    }


def main(path: str = str(PLANNING), wanted: str = "") -> None:
    """Plan each row in a process of its own, and write what came out; only the rows with `wanted` are just printed."""
    recorded = {}
    for row in planning_rows():
        if wanted not in row["name"]:
            continue
        reader, writer = os.pipe()
        if not os.fork():
            try:
                told = json.dumps(plan(row["config"], **row["flags"]))
            except BaseException as error:
                if wanted:
                    raise
                told = json.dumps(f"{type(error).__name__}: {str(error)[:300]}")
            os.write(writer, told.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        found = json.loads(text) if text else "it ended"
        if isinstance(found, dict):
            recorded[row["name"]] = found
            print(f"{row['name']}: {found}", flush=True)
        else:
            print(f"not recorded: {row['name']}: {found}", flush=True)
    if not wanted:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in recorded.items())
        Path(path).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
