"""A published trace is fetched whole and unchanged, or not at all."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.published import PUBLISHED, Published, PublishedFile, fetch

CONTENT = b'{"timestamp": 0}\n' * 20_000
LINE = b'{"requests": []}'


class Answers(BaseHTTPRequestHandler):
    """Serves the file, another one, one that breaks off, one of a single line, and nothing."""

    def do_GET(self) -> None:
        """Answer by the path."""
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(LINE if self.path == "/line" else CONTENT)))
        self.end_headers()
        content = {"/other": CONTENT[::-1], "/short": CONTENT[:5000], "/longer": CONTENT + CONTENT, "/line": LINE}
        self.wfile.write(content.get(self.path, CONTENT))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server on loopback."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def published(*addresses: str) -> Published:
    """Return the files as if they had been published there."""
    contents = [LINE if address.endswith("/line") else CONTENT for address in addresses]
    files = [
        PublishedFile(address, hashlib.sha256(content).hexdigest(), len(content))
        for address, content in zip(addresses, contents, strict=True)
    ]
    return Published(tuple(files), "a test", "none")


def test_the_published_file_is_taken(address: str, tmp_path: Path) -> None:
    """And takes the place of what was there."""
    target = tmp_path / "trace.jsonl"
    target.write_text("an old one")
    fetch(published(f"{address}/file"), target)
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]


def test_files_of_one_line_become_the_lines_of_one_file(address: str, tmp_path: Path) -> None:
    """In their order, or not at all: a second file that is not there leaves nothing behind."""
    target = tmp_path / "trace.jsonl"
    with pytest.raises(ConfigError, match="/missing cannot be reached: Not Found"):
        fetch(published(f"{address}/line", f"{address}/missing"), target)
    assert list(tmp_path.iterdir()) == []
    fetch(published(f"{address}/line", f"{address}/line"), target)
    assert target.read_bytes() == LINE + b"\n" + LINE + b"\n"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/other", "returned a file that differs from the published one: it is not kept"),
        ("/short", "returned a file that differs|broke off"),
        ("/missing", "cannot be reached: Not Found"),
    ],
)
def test_anything_else_leaves_nothing_behind(path: str, message: str, address: str, tmp_path: Path) -> None:
    """What was there stays as it was."""
    target = tmp_path / "trace.jsonl"
    target.write_text("an old one")
    with pytest.raises(ConfigError, match=message):
        fetch(published(f"{address}{path}"), target)
    assert target.read_text() == "an old one"
    assert list(tmp_path.iterdir()) == [target]


def test_without_a_network_there_is_one_sentence(tmp_path: Path) -> None:
    """Port 9 of this machine stands for an address that does not answer."""
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/file cannot be reached: "):
        fetch(published("http://127.0.0.1:9/file"), tmp_path / "trace.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_pinned_and_the_command_knows_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A revision of 40 digits, a digest of 64; and a folder that is not there is said in one line."""
    for one in PUBLISHED.values():
        assert one.licence
        for file in one.files:
            assert any(len(part) == 40 and set(part) <= set("0123456789abcdef") for part in file.address.split("/"))
            assert len(file.sha256) == 64
    assert len({file.address for file in PUBLISHED["agents"].files}) == 20
    assert main(["trace", "fetch", "conversation", "--to", str(tmp_path / "no folder" / "file")]) == 2
    assert capsys.readouterr().err.startswith("mini-kv trace: [Errno 2]")
