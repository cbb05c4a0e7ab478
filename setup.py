"""Puts the labs into a wheel and an sdist, and makes `pip install -e .` find `mini_kv_book` too.

All else that a build reads stands in pyproject.toml.
"""

import sys
import tempfile
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
LABS = "mini_kv/course/labkit/labs.zip"
"""The student's tree without the files of the package itself. `mini-kv labs` writes both into a folder."""


def carry_labs(built: Path) -> None:
    """Write `LABS` into the folder that is built. A source tree that is not a git clone has no list of its files."""
    if not (ROOT / ".git").exists() or not (ROOT / "solutions").is_dir():
        return
    sys.path.insert(0, str(ROOT))
    from mini_kv.course.grading.release import release

    with tempfile.TemporaryDirectory() as folder, ZipFile(built / LABS, "w", ZIP_DEFLATED) as archive:
        tree = Path(folder) / "tree"
        release(ROOT, tree)
        for path in sorted(tree.rglob("*")):
            name = path.relative_to(tree)
            in_package = name.parts[0] == "mini_kv" and (built / name).is_file()
            if path.is_file() and not in_package:
                archive.write(path, name)


class BuildWithLabs(build_py):
    """Add the labs to a wheel. An editable install has them in its clone."""

    def run(self) -> None:
        """Copy the modules and write the labs."""
        super().run()
        if not self.editable_mode:
            carry_labs(Path(self.build_lib))


class SdistWithLabs(sdist):
    """Add the labs to an sdist, for the wheel that is built from it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files and write the labs."""
        super().make_release_tree(base_dir, files)
        carry_labs(Path(base_dir))


class EditableWithBook(editable_wheel):
    """Add the book's package to an editable install; a wheel and an sdist carry `mini_kv` alone."""

    def run(self) -> None:
        """Build the editable wheel of both packages."""
        self.distribution.packages.append("mini_kv_book")
        self.distribution.package_dir["mini_kv_book"] = "book/mini_kv_book"
        super().run()


setup(cmdclass={"build_py": BuildWithLabs, "sdist": SdistWithLabs, "editable_wheel": EditableWithBook})
