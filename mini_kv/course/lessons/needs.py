"""Packages that only the notebooks need: loaded at their first use. The error has the command."""

import importlib
from typing import Any

from mini_kv.installer import install


class MissingPackageError(ImportError):
    """A notebook needs a package that is not installed. The message has the command that installs it."""


def need(module: str) -> Any:
    """Return the module. Raises `MissingPackageError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            f"this needs the package {package}: {install(package)}, or in a checkout `make notebooks`"
        ) from error
