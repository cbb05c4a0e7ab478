"""Makes `pip install -e .` find `mini_kv_book` too, so that any `mkdocs` finds the book's extensions.

All else that a build reads stands in pyproject.toml.
"""

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel


class EditableWithBook(editable_wheel):
    """Add the book's package to an editable install; a wheel and an sdist carry `mini_kv` alone."""

    def run(self) -> None:
        """Build the editable wheel of both packages."""
        self.distribution.packages.append("mini_kv_book")
        self.distribution.package_dir["mini_kv_book"] = "book/mini_kv_book"
        super().run()


setup(cmdclass={"editable_wheel": EditableWithBook})
