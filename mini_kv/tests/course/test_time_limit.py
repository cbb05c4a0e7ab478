"""The clock of code that may not return: what it computes counts, not the time on the wall."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mini_kv.course.labkit.time_limit import (
    Activity,
    Clock,
    Deadline,
    Interrupted,
    NoVerdictError,
    TookTooLongError,
    each_in_time,
    time_limit,
)


class Machine:
    """A machine whose clocks are turned by hand."""

    def __init__(self) -> None:
        self.wall = self.computed = 0.0
        self.is_active = True

    def deadline(self) -> Deadline:
        """Return a deadline of 5 s of computing and 60 s without activity."""
        return Deadline(5, 60, lambda: self.is_active, computed=lambda: self.computed, wall=lambda: self.wall)

    def verdict_after(self, deadline: Deadline, seconds: int, share: float = 0.0) -> TookTooLongError | None:
        """Check ten times per second while the process gets this share of the time."""
        for _ in range(seconds * 10):
            self.wall, self.computed = self.wall + 0.1, self.computed + 0.1 * share
            deadline.check()
            if deadline.error is not None:
                break
        return deadline.error


def test_code_that_computes_too_long_is_an_endless_loop_or_slow():
    machine = Machine()
    deadline = machine.deadline()
    assert machine.verdict_after(deadline, 4, share=1) is None
    assert "no end after 5 s of computing" in str(machine.verdict_after(deadline, 2, share=1))


def test_code_waits_if_nothing_was_active_for_a_minute():
    machine = Machine()
    machine.is_active = False
    deadline = machine.deadline()
    assert machine.verdict_after(deadline, 59) is None
    error = machine.verdict_after(deadline, 2)
    assert str(error) == "no end after 60 s without computing: it waits for an event that never occurs"
    assert not isinstance(error, NoVerdictError)


def test_one_moment_of_activity_begins_the_minute_again():
    machine = Machine()
    machine.is_active = False
    deadline = machine.deadline()
    assert machine.verdict_after(deadline, 50) is None
    machine.is_active = True
    assert machine.verdict_after(deadline, 2) is None
    machine.is_active = False
    assert machine.verdict_after(deadline, 50) is None


def test_on_a_busy_machine_there_is_no_verdict_after_ten_minutes():
    machine = Machine()
    deadline = machine.deadline()
    assert machine.verdict_after(deadline, 599, share=0.001) is None
    error = machine.verdict_after(deadline, 2)
    assert isinstance(error, NoVerdictError)
    assert str(error) == "no verdict after 600 s: this machine is busy, or the code waits"


def test_a_process_that_was_stopped_for_an_hour_has_not_waited_for_it():
    """As after Ctrl-Z: no verdict at most."""
    machine = Machine()
    machine.is_active = False
    deadline = machine.deadline()
    machine.wall += 100
    deadline.check()
    assert deadline.error is None


# In this process.


def endless():
    while True:
        pass


def test_a_loop_is_ended_and_the_next_one_too():
    for _ in range(2):
        with pytest.raises(TookTooLongError, match=r"no end after 0\.05 s of computing"), time_limit(0.05):
            endless()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who waits")
def test_code_that_waits_is_ended_where_it_waits():
    with pytest.raises(TookTooLongError, match=r"no end after 0\.2 s without computing"), time_limit(5, 0.2):
        threading.Event().wait(10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who waits")
def test_code_whose_child_computes_does_not_wait():
    child = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.8: pass"]
    with time_limit(5, 0.3):
        subprocess.run(child, check=True)


def test_each_step_has_its_whole_time_and_the_use_of_a_step_has_none():
    def compute(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def steps():
        for number in range(4):
            compute(0.2)
            yield number
        endless()

    in_time = each_in_time(steps(), 0.3)
    for number in range(4):
        assert next(in_time) == number
        compute(0.4)
    with pytest.raises(TookTooLongError, match=r"no end after 0\.3 s of computing"):
        next(in_time)


def test_a_loop_that_swallows_exceptions_is_interrupted():
    def steps():
        while True:
            try:
                yield from iter(int, 1)
            except Exception:
                continue

    with pytest.raises(TookTooLongError):
        next(each_in_time((step for step in steps() if step), 0.05))


def test_all_steps_share_one_thread():
    clocks = set()
    for _ in each_in_time(range(50), 5):
        clocks |= {thread for thread in threading.enumerate() if isinstance(thread, Clock)}
    assert len(clocks) == 1
    assert not clocks & {*threading.enumerate()}


def test_a_stopped_clock_does_not_run():
    with time_limit(0.05) as clock, clock.stopped():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="a process of Windows cannot send itself a signal")
def test_ctrl_c_is_no_verdict():
    asking = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    asking.start()
    with pytest.raises(Interrupted), time_limit(5):
        time.sleep(5)


# The accounts of Linux.


def accounts(folder, state="S", **nanoseconds):
    """Write the accounts of a process with these threads in this state. The thread `t1` is the one that asks."""
    folder.joinpath("self").mkdir(exist_ok=True)
    folder.joinpath("self", "schedstat").write_text("5 5 1\n", encoding="ascii")
    if not folder.joinpath("thread-self").is_symlink():
        folder.joinpath("thread-self").symlink_to("7/task/t1")
    for name, (computed, queued) in nanoseconds.items():
        process = "self" if name.startswith("t") else "8"
        thread = folder / process / "task" / name
        thread.mkdir(parents=True, exist_ok=True)
        thread.joinpath("schedstat").write_text(f"{computed} {queued} 1\n", encoding="ascii")
        thread.joinpath("stat").write_text(f"7 (a) b) {state} 1 1\n", encoding="ascii")
        thread.joinpath("children").write_text("8 9\n" if name == "t2" else "", encoding="ascii")


@pytest.mark.skipif(sys.platform == "win32", reason="no symbolic links")
def test_what_a_thread_or_a_descendant_computed_or_queued_is_activity(tmp_path):
    ms = 1_000_000
    accounts(tmp_path, t1=(0, 0), t2=(100 * ms, 0), c1=(100 * ms, 0))
    is_active = Activity(tmp_path)
    assert is_active()
    assert not is_active()
    accounts(tmp_path, t1=(900 * ms, 0))  # the asking thread's own
    assert not is_active()
    accounts(tmp_path, t2=(105 * ms, 0))  # next to nothing
    assert not is_active()
    accounts(tmp_path, t2=(105 * ms, 50 * ms))  # it stood in the queue
    assert is_active()
    accounts(tmp_path, c1=(200 * ms, 0))  # a child computed; the child 9 has ended
    assert is_active()
    assert not is_active()
    for state in ("R", "D"):  # in the queue right now, or at the disk
        accounts(tmp_path, state=state, t2=(105 * ms, 50 * ms))
        assert is_active()


def test_where_no_accounts_are_kept_a_process_is_never_said_to_wait(tmp_path):
    assert all(Activity(tmp_path)() for _ in range(3))
    tmp_path.joinpath("self").mkdir()
    tmp_path.joinpath("self", "schedstat").write_text("0 0 0\n", encoding="ascii")
    assert all(Activity(tmp_path)() for _ in range(3))


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells who waits")
def test_this_process_is_active_while_it_computes():
    is_active = Activity()
    found = []

    def ask():
        is_active()
        time.sleep(0.3)
        found.append(is_active())

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        pass
    assert found == [True]
