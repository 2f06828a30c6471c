from specgauge.sweeps.run.limits import Deadline


def test_seconds_run_out_and_never_below_nothing() -> None:
    now = [5.0]
    deadline = Deadline(3.0, now=lambda: now[0])
    assert (deadline.left_s, deadline.is_spent) == (3.0, False)
    now[0] = 7.5
    assert (deadline.left_s, deadline.is_spent) == (0.5, False)
    for second in (8.0, 99.0):
        now[0] = second
        assert (deadline.left_s, deadline.is_spent) == (0.0, True)


def test_without_seconds_there_is_no_end() -> None:
    deadline = Deadline()
    assert deadline.left_s is None
    assert not deadline.is_spent
    assert not Deadline(deadline.left_s).is_spent
    assert Deadline(0.0).is_spent
