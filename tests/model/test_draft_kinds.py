"""Cost functions of gamma by draft kind, and what is refused."""

import pytest

from specgauge.model.costs import AutoregressiveDraft, LookupDraft, ParallelDraft, draft_kind


def test_costs_and_passes_by_kind() -> None:
    assert AutoregressiveDraft(t_draft_s=2.0).total_s([0, 1, 3]).tolist() == [0.0, 2.0, 6.0]
    assert AutoregressiveDraft(t_draft_s=[1.0, 2.0, 4.0]).total_s([1, 2, 3]).tolist() == [1.0, 3.0, 7.0]
    assert ParallelDraft(t_pass_s=2.0).total_s([0, 1, 6]).tolist() == [0.0, 2.0, 2.0]
    assert LookupDraft(t_lookup_s=0.5).total_s([0, 1, 10]).tolist() == [0.0, 0.5, 0.5]
    kinds = (AutoregressiveDraft(t_draft_s=2.0), ParallelDraft(t_pass_s=2.0), LookupDraft())
    assert [kind.passes([0, 3]).tolist() for kind in kinds] == [[0, 3], [0, 1], [0, 1]]


def test_kinds_by_name() -> None:
    assert draft_kind("autoregressive", [1.0, 2.0]) == AutoregressiveDraft(t_draft_s=[1.0, 2.0])
    assert draft_kind("parallel", 1.0, heads=4) == ParallelDraft(t_pass_s=1.0, heads=4)
    assert draft_kind("lookup", 0.0) == LookupDraft()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draft_kind("tree", 1.0), "found 'tree'.*draft trees are not covered"),
        (lambda: draft_kind("paralel", 1.0), r"found 'paralel'.*\(nearest: parallel\)"),
        (lambda: draft_kind("lookup", [1.0, 2.0]), "found 2 values for a lookup draft"),
        (lambda: AutoregressiveDraft(t_draft_s=[1.0]).total_s(2), "found 1 steps for gamma 2"),
        (lambda: ParallelDraft(t_pass_s=1.0, heads=3).total_s(4), "gamma: found 4 with 3 heads"),
        (lambda: LookupDraft(t_lookup_s=-1.0).total_s(1), "t_lookup_s: found -1"),
    ],
)
def test_bad_kinds_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
