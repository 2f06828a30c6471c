"""Work that the process was stopped in is done again, and no other."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from specgauge.bench.timing.clock import undisturbed


@pytest.mark.parametrize("stops", [0, 1, 3])
def test_work_is_repeated_until_no_stop_falls_into_it(stops: int) -> None:
    """SIGCONT comes when a stop ends; to a process that runs it says the same."""
    done = list[int]()

    def work() -> int:
        done.append(len(done))
        if len(done) <= stops:
            os.kill(os.getpid(), signal.SIGCONT)
        return done[-1]

    assert undisturbed(work) == stops
    assert done == list(range(stops + 1))


def test_a_stop_between_two_pieces_of_work_disturbs_neither() -> None:
    done = list[str]()
    undisturbed(lambda: done.append("first"))
    os.kill(os.getpid(), signal.SIGCONT)
    undisturbed(lambda: done.append("second"))
    assert done == ["first", "second"]


def test_another_thread_works_without_a_watch() -> None:
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(undisturbed(lambda: 7)))
    thread.start()
    thread.join()
    assert found == [7]


def test_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 // 0)
