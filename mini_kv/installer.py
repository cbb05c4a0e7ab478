"""The commands that install what is missing, as they work in this environment. Standard library only."""

import importlib.util


def pip() -> str:
    """Return this environment's installer: `uv pip` where pip is missing, as in an environment that uv has made."""
    return "pip" if importlib.util.find_spec("pip") else "uv pip"


def install(packages: str, make: str = "") -> str:
    """Return the command that installs packages here. `make` is the target that does it in an environment of make's."""
    command = f"{pip()} install {packages}"
    return f"{make}, or {command}" if make and pip() == "pip" else command


def install_extra(extra: str, make: str = "make test") -> str:
    """Return the command that installs an extra of pyproject.toml in a checkout."""
    command = install(f"-e '.[{extra}]'", make)
    return f"in a checkout: {command}"


def install_torch() -> str:
    """Return the commands that install PyTorch."""
    cpu = install("torch --index-url https://download.pytorch.org/whl/cpu")
    return f"{install_extra('attention')}. On Linux without a GPU first: {cpu}"
