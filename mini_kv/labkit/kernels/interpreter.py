"""Triton's kernels run by Triton's interpreter, on any CPU, without telling the rest of the process.

The usual switch, `TRITON_INTERPRET=1`, counts from the moment triton is imported, for all kernels and for good. Here it
counts while a learner's file is loaded and while its kernels run: other kernels in the same process, and the compiler,
see nothing of it. Checked with triton 3.7.1; what begins with an underscore there may change.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def interpreted() -> Iterator[None]:
    """Make each `@triton.jit` met meanwhile a kernel for the interpreter, and let such kernels run.

    Exceptions come out of a kernel as they were raised, with the learner's line in their traceback.
    """
    from triton import knobs
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with (
        warnings.catch_warnings(),
        knobs.runtime.scope(),
        knobs.compilation.scope(),
        mock.patch.object(JITFunction, "__call__", _call_from_kernel),
        mock.patch.object(InterpretedFunction, "__call__", _call_from_kernel),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, for 0 / 0: a GPU says NaN, and nothing else
        knobs.runtime.interpret = True
        knobs.compilation.front_end_debugging = True
        yield


def _call_from_kernel(function: Any, *args: Any, **options: Any) -> Any:
    """Run a jitted function that a kernel calls: a learner's own, or one of triton's, such as `tl.sum`.

    Triton's own were made for the compiler if it was imported without the switch. Unlike the interpreter's own way,
    this one puts the language back as it was.
    """
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang

    source = function.fn
    rewritten: Callable[..., Any] = InterpretedFunction(source).rewrite()
    scope = _patch_lang(source)
    try:
        return rewritten(*args, **options)
    finally:
        scope.restore()
