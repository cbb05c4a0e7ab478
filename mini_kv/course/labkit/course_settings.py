"""`book/course.toml`: an instructor's settings of a course. Without the file every lab is open."""

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_kv.course.labkit.lab import find_checkout

FILE = "book/course.toml"
PLACEHOLDER = "OWNER"
"""The account in the address of a copy that has none."""


@dataclass(frozen=True, slots=True)
class Course:
    """One course."""

    name: str = "mini_kv"
    address: str = ""
    """Address of the repository."""
    site: str = ""
    """Address of the book. "": the one of GitHub Pages."""
    language: str = "en"
    notes: str = ""
    hidden: tuple[str, ...] = ()
    opens: Mapping[str, datetime.date] = field(default_factory=dict)
    """The day on which a lab opens."""
    challenge: int = 0
    """The seed of lab-17's contract. 0: the public one."""

    @property
    def has_address(self) -> bool:
        """Whether `mini-kv class address` has put an address in the placeholder's place."""
        return bool(self.address) and PLACEHOLDER not in self.address.split("/")

    @property
    def site_url(self) -> str:
        """The address of the book, which ends with a slash."""
        host, owner, name = self.address.removeprefix("https://").split("/", 2)
        pages = {"github.com": "github.io", "gitlab.com": "gitlab.io"}.get(host, host)
        return f"{(self.site or f'https://{owner}.{pages}/{name}').rstrip('/')}/"

    def closed(self, today: datetime.date | None = None) -> dict[str, str]:
        """Return a sentence for each lab that is not open."""
        today = today or datetime.date.today()
        waiting = {lab: f"This lab opens on {day}." for lab, day in self.opens.items() if day > today}
        return waiting | dict.fromkeys(self.hidden, "This lab is not part of the course.")


def load_course(root: Path) -> Course:
    """Return the course of a checkout. Raises `ValueError` with the file's name and the error."""
    file = root / FILE
    if not file.is_file():
        return Course()
    try:
        values: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        labs = values.pop("labs", {})
        course = Course(**values, hidden=tuple(labs.get("hidden", ())), opens=labs.get("opens", {}))
        _check(course, root)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{FILE}: {error}") from None
    return course


def play_address(start: Path) -> str:
    """Return where the page "Play" is: on the course's site, or in the book that make builds on this machine."""
    try:
        course = load_course(find_checkout(start))
    except ValueError:
        course = Course()
    on_site = course.site or course.has_address
    return f"{course.site_url}play/" if on_site else "make book, then /play/ at the address that it prints"


def _check(course: Course, root: Path) -> None:
    for lab in (*course.hidden, *course.opens):
        if not (root / "labs" / lab / "lab.toml").is_file():
            raise ValueError(f"there is no {lab}")
    if type(course.challenge) is not int or course.challenge < 0:
        raise ValueError(f"challenge is a whole number, at least 0: {course.challenge!r}")
    if any(type(day) is not datetime.date for day in course.opens.values()):
        raise ValueError("a lab opens on a day such as 2027-03-01, without quotes")
    for address in filter(None, (course.address, course.site)):
        if not address.startswith("https://") or len(address.split()) != 1:
            raise ValueError(f"an address begins with https:// and has no spaces: {address!r}")
    if course.address.count("/") < 4:
        raise ValueError(f"the address names an account and a repository: {course.address!r}")
