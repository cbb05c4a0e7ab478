"""`mini-kv labs FOLDER`: write the labs into a folder, from an installed mini_kv."""

import argparse
import shutil
import sys
import zipfile
from pathlib import Path

from mini_kv.course.labkit.lab import PACKED_LABS

PACKAGE = Path(__file__).parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    parser.add_argument("folder", metavar="FOLDER", help="a new or an empty folder; . is the current one")


def run(args: argparse.Namespace) -> int:
    """Write the labs and return the exit status."""
    folder = Path(args.folder)
    try:
        _write_labs(folder)
    except ValueError as error:
        print(f"mini-kv labs: {error}", file=sys.stderr)
        return 2
    print(f"the labs are in {args.folder}; lab 05, for example, is labs/lab-05/starter.py")
    print(f"to test it: {'' if folder.samefile(Path.cwd()) else f'cd {args.folder}, then '}mini-kv run 05")
    return 0


def _write_labs(folder: Path) -> None:
    """Write the labs, and the package whose engine they use. A folder where that fails is empty again.

    Raises `ValueError` if the folder is not empty, or if this mini_kv has no packed labs.
    """
    if not PACKED_LABS.is_file():
        raise ValueError(f"{PACKAGE} is not from a wheel: its labs are beside it, in {PACKAGE.parent / 'labs'}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(PACKED_LABS) as packed:
            packed.extractall(folder)
        left_out = shutil.ignore_patterns("__pycache__", PACKED_LABS.name)
        shutil.copytree(PACKAGE, folder / "mini_kv", ignore=left_out, dirs_exist_ok=True)
    except OSError:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
