"""Cost functions of gamma by draft kind, and what is refused."""

import pytest

from specgauge.model.costs import draft_kind


@pytest.mark.parametrize(
    ("name", "t_draft_s", "total_s", "passes"),
    [
        ("autoregressive", 2.0, [0.0, 2.0, 6.0], [0, 1, 3]),
        ("autoregressive", [1.0, 2.0, 4.0], [0.0, 1.0, 7.0], [0, 1, 3]),
        ("parallel", 2.0, [0.0, 2.0, 2.0], [0, 1, 1]),
        ("lookup", [0.5], [0.0, 0.5, 0.5], [0, 1, 1]),
    ],
)
def test_costs_and_passes_by_kind(
    name: str, t_draft_s: float | list[float], total_s: list[float], passes: list[int]
) -> None:
    kind = draft_kind(name, t_draft_s)
    assert kind.total_s([0, 1, 3]).tolist() == total_s
    assert kind.passes([0, 1, 3]).tolist() == passes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draft_kind("tree", 1.0), "got 'tree'.*draft trees are not covered"),
        (lambda: draft_kind("paralel", 1.0), r"got 'paralel' \(nearest: parallel\)"),
        (lambda: draft_kind("lookup", [1.0, 2.0]), "for a lookup draft, got 2"),
        (lambda: draft_kind("autoregressive", [1.0]).total_s(2), "a step for each of 2 drafts.*, got 1"),
        (lambda: draft_kind("lookup", -1.0), "t_draft_s: found -1"),
    ],
)
def test_bad_kinds_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
