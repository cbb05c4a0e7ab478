"""The cache managers of other engines, imported from a checkout. The rest, which needs a GPU, is left out."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def open_package(engine: str, checkout: Path, folder: str, file: str) -> str:
    """Make the modules of a package importable without its `__init__`, and return its name.

    Raises `ImportError` if the checkout has no such `file` in the package's `folder`.
    """
    if not (checkout / folder / file).is_file():
        raise ImportError(f"{checkout} is not a checkout of {engine}: no file {folder}/{file}")
    name = Path(folder).name
    _bare_package(name, checkout / folder)
    return name


def _bare_package(name: str, folder: Path) -> None:
    """Put an empty package in place of one whose `__init__` needs a GPU. Its modules are imported from `folder`."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


class MiniSGLang:
    """mini-sglang's cache manager and its radix tree. The tree compares tokens in C++, which is compiled here."""

    def __init__(self, checkout: Path) -> None:
        """Import it. Raises `ImportError` if it is missing or cannot be compiled."""
        open_package("mini-sglang", checkout, "python/minisgl", "kvcache/radix_cache.py")
        try:
            self.torch: Any = import_module("torch")
            self._import_without_gpu(checkout / "python" / "minisgl")
            self.core: Any = import_module("minisgl.core")
            self.cache_manager = import_module("minisgl.scheduler.cache").CacheManager
            self.table_manager = import_module("minisgl.scheduler.table").TableManager
            self.pending = import_module("minisgl.scheduler.utils").PendingReq
            one = self.torch.ones(1, dtype=self.torch.int32)
            import_module("minisgl.kernel").fast_compare_key(one, one)  # compiles it, where that is not done
        except (ImportError, RuntimeError, OSError) as error:
            reason = "it needs torch, apache-tvm-ffi, ninja and a C++ compiler"
            raise ImportError(f"mini-sglang cannot be imported, {reason}: {error}") from error

    def _import_without_gpu(self, package: Path) -> None:
        """Leave out the parts whose `__init__` imports kernels, sockets and transformers.

        The parts that the cache imports from them are set here. The page table's pinned memory also needs a GPU, so
        plain memory replaces it.
        """
        for part in ("utils", "kernel", "scheduler"):
            _bare_package(f"minisgl.{part}", package / part)
        for name, names in {
            "utils.misc": ("align_down", "div_ceil"),
            "utils.registry": ("Registry",),
            "kernel.radix": ("fast_compare_key",),
        }.items():
            module = import_module(f"minisgl.{name}")
            parent = sys.modules[f"minisgl.{name.partition('.')[0]}"]
            vars(parent).update({each: getattr(module, each) for each in names})

        def empty(*size: Any, pin_memory: bool = False, **options: Any) -> Any:
            return self.torch.empty(*size, **options)

        cache = import_module("minisgl.scheduler.cache")
        vars(cache)["torch"] = SimpleNamespace(**{**vars(self.torch), "empty": empty})

    def make_cache(self, num_pages: int, page_size: int, max_requests: int, max_tokens: int) -> tuple[Any, Any]:
        """Return a cache manager and the page table. Only one page size at a time is possible."""
        # The tree takes its page size from here when it is made. The engine sets it once.
        vars(self.core)["_GLOBAL_CTX"] = self.core.Context(page_size=page_size)
        page_table = self.torch.zeros((max_requests, max_tokens), dtype=self.torch.int32)
        manager = self.cache_manager(num_pages, page_size, page_table, "radix")
        return manager, self.table_manager(max_requests, page_table)

    def admit(self, manager: Any, tables: Any, pending: Any) -> tuple[Any, int] | None:
        """Lock the cached prefix of a request and return it with a new row of the page table. `None` if it has no room.

        It does the work of `PrefillAdder` on the page table.
        """
        handle = manager.match_req(pending).cuda_handle
        num_hit = handle.cached_len
        manager.lock(handle)
        if pending.input_len - num_hit > manager.available_size:
            manager.unlock(handle)
            return None
        row = tables.allocate()
        if num_hit:
            tables.page_table[row][:num_hit].copy_(handle.get_matched_indices())
        return handle, row
