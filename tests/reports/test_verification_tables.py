from specgauge.reports.records import verified
from specgauge.reports.verification_tables import baseline_table, policy_table, verification_table
from tests.reports.verified_rows import a_forced_row, a_policy, a_record
from tests.sweeps.verification_rows import FORCED

COLUMNS = [
    "γ", "S predicted", "S from counts", "S measured", "interval", "cost error", "Ω predicted", "Ω counted",
    "acceptance error", "95\u202f% interval", "ε, ms", "rounds, counted / expected", "z", "whole requests",
]  # fmt: skip


def test_a_row_holds_every_figure() -> None:
    table = verification_table([a_record()], set())
    assert list(table.columns) == COLUMNS
    assert [group.heading for group in table.groups] == ["greedy · batch 1, 64 tokens of context"]
    (row,) = table.groups[0].rows
    assert list(row.cells) == [
        "2", "1.65", "1.53", "1.50", "1.40–1.60", "+2.0\u202f%", "2.20", "2.00", "+10.0\u202f%",
        "−5.0 to +25.0\u202f%", "1.00", "64 / 63.5", "+0.5", "1.40\u202f×",
    ]  # fmt: skip
    assert table.caption == (
        "pair embedded; mode eager; draft sampling same; ratio rule; every ε is fitted at other contexts; "
        "every row is lossless"
    )


def test_rows_stand_by_strategy_place_and_gamma_and_the_recommended_stand_out() -> None:
    rows = [a_record(gamma=gamma, context=context) for context in (256, 64) for gamma in (4, 2)]
    rows.insert(1, a_record(sampling="t1"))
    table = verification_table(rows, {rows[0].key})
    assert [(group.heading.split()[0], len(group.rows)) for group in table.groups] == [
        ("greedy", 2),
        ("greedy", 2),
        ("t1", 1),
    ]
    assert [[(row.cells[0], row.chosen) for row in group.rows] for group in table.groups[:2]] == [
        [("2", False), ("4", False)],
        [("2", False), ("4", True)],
    ]


def test_what_differs_between_rows_has_a_column_of_its_own() -> None:
    table = verification_table([a_record(), verified(a_forced_row(gamma=3, overhead_from="same context"))], set())
    assert (table.columns[11], table.columns[-1]) == ("ε fitted at", "lossless")
    first, second = table.groups[0].rows
    assert (first.cells[11], first.cells[-1]) == ("other contexts", "yes")
    assert (second.cells[11], second.cells[-1]) == ("same context", f"no: {FORCED}")
    assert len(first.cells) == len(second.cells) == len(table.columns)
    assert "lossless" not in table.caption
    assert list(second.cells)[1:10] == ["–", "1.53", "1.50", "1.40–1.60", "+2.0\u202f%", "–", "–", "–", "–"]


def test_forced_rows_alone_are_named_once() -> None:
    assert verification_table([verified(a_forced_row())], set()).caption.endswith(f"no row is lossless: {FORCED}")


def test_rounds_that_chance_hardly_explains_say_so() -> None:
    unexpected = a_record(rounds_standard_errors=-9.06, rounds_agree=False)
    unknown = a_record(gamma=3, rounds_standard_errors=None, rounds_expected=None, rounds_agree=None)
    table = verification_table([unexpected, unknown], set())
    assert [row.cells[11:13] for row in table.groups[0].rows] == [["64 / 63.5", "−9.1, unexpected"], ["64 / –", "–"]]


def test_baselines_are_told_once_a_cell() -> None:
    rows = [a_record(gamma=2), a_record(gamma=3), a_record(batch_size=4, plain_over_generate=0.9, plain_over_loop=None)]
    table = baseline_table(rows)
    assert table is not None
    assert [(group.heading, [list(row.cells) for row in group.rows]) for group in table.groups] == [
        ("greedy", [["batch 1, context 64", "1.10\u202f×", "1.05\u202f×"], ["batch 4, context 64", "0.90\u202f×", "–"]])
    ]
    assert baseline_table([a_record(plain_over_generate=None, plain_over_loop=None)]) is None


def test_a_policy_stands_beside_plain_decoding_the_best_gamma_and_its_replay() -> None:
    slower = a_policy(policy="heuristic", speedup_measured=1.2, best_fixed_gamma=None, over_best_fixed=None,
                      over_best_fixed_low=None, speedup_predicted=None, error=None, error_low=None)  # fmt: skip
    table = policy_table([slower, a_policy()])
    assert table is not None
    assert table.caption == "pair embedded; mode eager; draft sampling same; ratio rule"
    (group,) = table.groups
    assert group.heading == "greedy · batch 1, 64 tokens of context"
    first, second = (list(row.cells) for row in group.rows)
    assert first == [
        "svip", "1.60", "1.50–1.70", "1.56", "−2.5\u202f%", "−4.0 to +1.0\u202f%", "1.58", "−1.2\u202f%", "2",
        "1.04\u202f×", "1.01–1.07", "2.25", "12 / 40",
    ]  # fmt: skip
    assert second[:6] == ["heuristic", "1.20", "1.50–1.70", "–", "–", "–"]
    assert second[8:11] == ["–", "–", "–"]
    assert len(first) == len(table.columns)
    assert policy_table([]) is None
