"""`book/course.toml`: one edit and one command, and everything that carries the address says the new one."""

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mini_kv_book import course as of_book

from mini_kv.course.labkit.course_settings import PLACEHOLDER, Course, load_course
from mini_kv.course.labkit.lab import place_of

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("mini_kv/tests/test_notebooks.py", "mini_kv/tests/test_book.py", "mini_kv/tests/test_readme.py")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """What git knows of this checkout, in a repository of its own."""
    folder = tmp_path_factory.mktemp("fork") / "course"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "add", "."], check=True)
    return folder


def call(folder, *words):
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{folder / 'book'}"}
    environment.pop("LAB_IMPL", None)
    command = [sys.executable, "-P", "-m", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def edit(folder, old, new):
    file = folder / "book" / "course.toml"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.slow
def test_after_one_command_no_file_has_the_old_address(copy):
    """And the tests that look at the links pass, as they stand. The placeholder is in the file that refuses it."""
    here = "https://github.com/a-school/kv-2027"
    old = load_course(copy).address
    refused = call(copy, "mini_kv", "class", "address", "git@github.com:a-school/kv-2027.git")
    assert (refused.returncode, refused.stderr) == (
        2,
        "mini-kv class address: 'git@github.com:a-school/kv-2027.git' is not the address of a repository, such as"
        " https://github.com/ME/mini_kv\n",
    )
    assert load_course(copy).address == old
    placeholder = f"https://github.com/{PLACEHOLDER}/mini_kv"
    assert call(copy, "mini_kv", "class", "address", placeholder).returncode == 0
    refused = call(copy, "mini_kv_book.course")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"book/course.toml says {placeholder}. Put your own address there: mini-kv class address https://github.com/ME/mini_kv\n",
    )
    written = call(copy, "mini_kv", "class", "address", f"{here}.git")
    assert (written.returncode, written.stderr) == (0, "")
    for text in {PLACEHOLDER, old}:
        found = subprocess.run(["git", "grep", "-lF", text], cwd=copy, capture_output=True, text=True, check=False)
        assert set(found.stdout.split()) <= {"mini_kv/course/labkit/course_settings.py"}
    entered = subprocess.run(
        ["git", "grep", "-nE", "cd mini_kv$"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert entered.stdout == ""
    checked = call(copy, "mini_kv_book.course")
    assert (checked.returncode, checked.stdout) == (
        0,
        "mini_kv: https://github.com/a-school/kv-2027, published at https://a-school.github.io/kv-2027/;"
        " 0 labs not shown\n",
    )
    tests = call(copy, "pytest", "-q", "-p", "no:cacheprovider", *LINKS)
    assert (tests.returncode, tests.stdout[-2000:] * tests.returncode) == (0, "")
    first = json.loads((copy / "notebooks/01-blocks-and-waste.ipynb").read_text())["cells"][1]["source"][-1]
    assert first == '    %pip install --quiet "mini_kv @ git+https://github.com/a-school/kv-2027"'


@pytest.mark.slow
def test_a_lab_that_is_hidden_or_not_open_is_not_in_status(copy):
    edit(copy, "hidden = []", 'hidden = ["lab-13"]')
    edit(copy, "# lab-06 = 2027-03-01", "lab-06 = 2999-03-01")
    try:
        shown = re.findall(r"^ *(lab-\S+)", call(copy, "mini_kv", "status").stdout, re.MULTILINE)
    finally:
        edit(copy, 'hidden = ["lab-13"]', "hidden = []")
        edit(copy, "lab-06 = 2999-03-01", "# lab-06 = 2027-03-01")
    every = sorted((path.parent.name for path in ROOT.glob("labs/lab-*/lab.toml")), key=place_of)
    assert shown == [lab for lab in every if lab not in ("lab-06", "lab-13")]


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("git clone {}\ncd {}\n", "git clone {}\ncd {}\n"),
        ("!git clone -q {}\n%cd {}\n", "!git clone -q {}\n%cd {}\n"),
        ("[clone]({})\ncd mini_kv\n", "[clone]({})\ncd mini_kv\n"),
    ],
)
def test_who_clones_the_course_enters_the_folder_that_the_clone_makes(text, moved):
    old, new = f"https://github.com/{PLACEHOLDER}/mini_kv", "https://github.com/a-school/kv-2027"
    assert of_book.addressed(text.format(old, "mini_kv"), old, Course(address=new)) == moved.format(new, "kv-2027")


def test_a_lab_opens_on_its_day():
    course = Course(hidden=("lab-01",), opens={"lab-06": datetime.date(2027, 3, 1)})
    assert course.closed(datetime.date(2027, 2, 28)) == {
        "lab-01": "This lab is not part of the course.",
        "lab-06": "This lab opens on 2027-03-01.",
    }
    assert list(course.closed(datetime.date(2027, 3, 1))) == ["lab-01"]


@pytest.mark.parametrize(
    ("course", "url"),
    [
        (Course(address="https://github.com/a/kv"), "https://a.github.io/kv/"),
        (Course(address="https://gitlab.com/a/kv"), "https://a.gitlab.io/kv/"),
        (Course(address="https://github.com/a/kv", site="https://kv.example.edu"), "https://kv.example.edu/"),
        (Course(address="https://github.com/a/kv", site="https://example.edu/cs/kv/"), "https://example.edu/cs/kv/"),
    ],
)
def test_the_site_is_where_pages_puts_it_or_where_the_course_says(course, url):
    assert course.site_url == url


def test_the_readme_says_where_the_book_is_or_how_to_give_it_an_address():
    """The doors of the README are files of the repository. Only this paragraph leads to a site, once there is one."""
    readme, here = (ROOT / "README.md").read_text(encoding="utf-8"), load_course(ROOT)
    assert of_book.where_the_book_is(here) in readme
    assert ("This copy has no address yet" in readme) != here.has_address
    moved = of_book.addressed(readme, here.address, Course(address="https://github.com/school/kv"))
    assert "<!-- site -->\n**[The book](https://school.github.io/kv/)** is published" in moved
    assert "no address yet" not in moved
    assert of_book.published_at() == here.site_url


def test_an_address_on_gitlab_is_carried_as_binder_wants_it():
    text = "https://github.com/o/kv x mybinder.org/v2/gh/o/kv/main y github.com/o/kv-traces"
    there = Course(address="https://gitlab.com/school/kv")
    assert of_book.addressed(text, "https://github.com/o/kv", there) == (
        "https://gitlab.com/school/kv x mybinder.org/v2/gl/school%2Fkv/main y github.com/o/kv-traces"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('adress = "https://github.com/a/b"', "unexpected keyword argument 'adress'"),
        ('address = "github.com/a/b"', "an address begins with https:// and has no spaces: 'github.com/a/b'"),
        ('address = "https://github.com/a"', "the address names an account and a repository"),
        ('address = "https://github.com/a/b"\n[labs]\nhidden = ["lab-99"]', "there is no lab-99"),
    ],
)
def test_a_mistake_is_named(text, why, tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "course.toml").write_text(text)
    with pytest.raises(ValueError, match=r"^book/course.toml: ") as raised:
        load_course(tmp_path)
    assert why in str(raised.value)


def test_without_the_file_every_lab_is_open(tmp_path):
    assert load_course(tmp_path).closed() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no bash")
@pytest.mark.parametrize(
    ("said", "status", "shown", "output"),
    [
        ("mini_kv: published", 0, "mini_kv: published\n", "has_address=true\n"),
        ("Put your own address there", 0, "::notice::The book is not published, see ", None),
        ("book/course.toml: there is no lab-99", 1, "book/course.toml: there is no lab-99\n", None),
    ],
)
def test_the_publishing_workflow_ends_with_a_notice_while_there_is_no_address(said, status, shown, output, tmp_path):
    workflow = (ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8")
    script = re.search(r"id: course.*\n +run: \|\n((?: {10}.*\n)+)", workflow)
    assert script is not None
    (tmp_path / "book" / "mini_kv_book").mkdir(parents=True)
    exits = "print" if said.startswith("mini_kv") else "raise SystemExit"
    (tmp_path / "book" / "mini_kv_book" / "course.py").write_text(f"{exits}({said!r})\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.defpath}", "GITHUB_OUTPUT": str(tmp_path / "output")}
    done = subprocess.run(
        ["bash", "-e", "-c", script[1]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    written = tmp_path / "output"
    assert (done.returncode, written.read_text() if written.exists() else None) == (status, output)
    assert done.stdout.startswith(shown)


def test_without_an_address_the_publishing_workflow_builds_and_publishes_nothing():
    workflow = (ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8")
    after = workflow.partition("id: course")[2]
    steps = re.findall(r"^      - (.*)(?:\n +(.*))?", after, re.MULTILINE)
    built = [step for step in steps if "deployment" not in step[0]]
    assert [condition for condition, _ in built] == ["if: steps.course.outputs.has_address"] * 2
    assert built[0][1].startswith("run: make book-whole")
    assert "needs: build\n    if: needs.build.outputs.has_address\n" in after


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no bash")
@pytest.mark.parametrize(
    ("tag", "status", "shown"),
    [
        ("v1.2.3", 0, ""),
        ("v1.2", 1, "the tag is v1.2, and pyproject.toml says 1.2.3: delete the tag, or change the version\n"),
    ],
)
def test_a_release_has_the_version_of_its_tag(tag, status, shown, tmp_path):
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    script = re.search(r"id: version\n +run: \|\n((?: {10}.*\n)+)", workflow)
    assert script is not None
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "-e", "-c", script[1]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, shown)


def test_only_the_job_that_makes_a_release_may_write_to_the_repository():
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert [name for name, text in texts.items() if "\npermissions:\n  contents: read\n" not in text] == []
    assert {name: text.count("contents: write") for name, text in texts.items()} == {
        "book.yml": 0,
        "ci.yml": 0,
        "release.yml": 1,
    }
