"""The line that shows on a terminal that long work goes on."""

import io
import time

from mini_kv.progress_line import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def line(self):
        """Return what is on the screen: each return begins the line again, and writes over it."""
        cells = ""
        for text in self.getvalue().split("\r"):
            cells = text + cells[len(text) :]
        return cells.rstrip()


def test_work_without_news_shows_its_seconds_and_the_line_is_erased_at_the_end():
    terminal = Terminal()
    with ProgressLine(terminal, "reading the trace"):
        deadline = time.monotonic() + 60
        while "reading the trace, " not in terminal.line() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert terminal.line().startswith("reading the trace, ")
    assert terminal.line() == ""


def test_a_shorter_text_covers_a_longer_one():
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.tell("Act 9, run 12")
    line.tell("Act 10")
    assert terminal.line() == "Act 10"


def test_a_text_on_standard_output_takes_the_place_of_the_line(capsys):
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.tell("Act 9")
    line.print("Act 9. A model: 30 parts")
    assert (terminal.line(), capsys.readouterr().out) == ("", "Act 9. A model: 30 parts\n")


def test_a_file_gets_no_line():
    file = io.StringIO()
    with ProgressLine(file, "reading") as line:
        line.show(1)
    assert file.getvalue() == ""
