"""Runs kernels with Triton's interpreter, on any CPU, without an effect on the rest of the process.

The usual switch, `TRITON_INTERPRET=1`, applies permanently to all kernels after triton is imported. Here it applies
only while a learner's file is loaded and while its kernels run. It does not affect the compiler or other kernels in the
same process. Checked with triton 3.7.1. Its names with a leading underscore may change.

Only this file of the project replaces methods of another package's classes, each while a context lasts. Triton's
interpreter is made of module globals and has no argument for an observer.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest import mock


class KernelObserver(Protocol):
    """Methods that the interpreter calls while kernels run: on each launch, load and store."""

    def on_launch(self, arguments: dict[str, Any]) -> None:
        """Called before a kernel runs with these arguments, by name."""

    def on_load(self, builder: Any, ptrs: Any, mask: Any, other: Any, loaded: Callable[[], Any]) -> Any:
        """Return the result of the load. `loaded` makes it."""

    def on_store(self, builder: Any, ptrs: Any, mask: Any) -> None:
        """Called before a store."""


@contextmanager
def interpreted(observer: KernelObserver | None = None) -> Iterator[None]:
    """While the context lasts, make each `@triton.jit` a kernel for the interpreter, and let such kernels run.

    Exceptions of a kernel are unchanged, with the learner's line in their traceback.
    """
    from triton import knobs
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with ExitStack() as contexts:
        contexts.enter_context(warnings.catch_warnings())
        contexts.enter_context(knobs.runtime.scope())
        contexts.enter_context(knobs.compilation.scope())
        for owner in (JITFunction, InterpretedFunction):
            contexts.enter_context(mock.patch.object(owner, "__call__", _call_from_kernel))
        for owner, name, method in _observing(observer) if observer is not None else ():
            contexts.enter_context(mock.patch.object(owner, name, method))
        warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, for 0 / 0: a GPU says NaN, and nothing else
        knobs.runtime.interpret = True
        knobs.compilation.front_end_debugging = True
        yield


def _call_from_kernel(function: Any, *args: Any, **options: Any) -> Any:
    """Run a jitted function that a kernel calls: a learner's own, or one of triton's, such as `tl.sum`.

    Triton's functions were made for the compiler if it was imported without the switch. Unlike the interpreter's own
    call, this one restores the patched language afterwards.
    """
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang

    source = function.fn
    rewritten: Callable[..., Any] = InterpretedFunction(source).rewrite()
    scope = _patch_lang(source)
    try:
        return rewritten(*args, **options)
    finally:
        scope.restore()


def _observing(observer: KernelObserver) -> list[tuple[type, str, Callable[..., Any]]]:
    """Return the methods of the interpreter to replace, so that they call the observer: class, name, replacement."""
    from triton.runtime.interpreter import GridExecutor, interpreter_builder

    builder_class = type(interpreter_builder)
    load, store, launch = builder_class.create_masked_load, builder_class.create_masked_store, GridExecutor.__call__

    def observed_load(builder: Any, ptrs: Any, mask: Any, other: Any, *options: Any) -> Any:
        return observer.on_load(builder, ptrs, mask, other, lambda: load(builder, ptrs, mask, other, *options))

    def observed_store(builder: Any, ptrs: Any, value: Any, mask: Any, *options: Any) -> Any:
        observer.on_store(builder, ptrs, mask)
        return store(builder, ptrs, value, mask, *options)

    def observed_launch(executor: Any, *args: Any, **options: Any) -> None:
        observer.on_launch(dict(zip(executor.arg_names, args, strict=False)) | options)
        launch(executor, *args, **options)

    return [
        (builder_class, "create_masked_load", observed_load),
        (builder_class, "create_masked_store", observed_store),
        (GridExecutor, "__call__", observed_launch),
    ]
