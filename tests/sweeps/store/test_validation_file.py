from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.analysis.decoded import verification_csv
from specgauge.sweeps.analysis.validation import COLUMNS, POLICY_COLUMNS
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.validation_file import read_verification
from tests.sweeps import made
from tests.sweeps.verification_rows import forced_row, policy_row, verification_row


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    unknown: dict[str, Any] = {
        name: None for name in COLUMNS if name not in verification_row() or name.startswith(("speedup", "rounds"))
    }
    unknown |= {"rounds_counted": 7, "blocks": None, "t_overhead_s": None, "overhead_from": None}
    rows = (verification_row(error=0.1 + 0.2), forced_row(), verification_row(**unknown))
    assert set(rows[0]) == set(COLUMNS)
    path = tmp_path / "verification.csv"
    path.write_text(verification_csv(rows), encoding="utf-8")
    assert read_verification(path) == rows


def test_a_run_without_decoded_texts_has_no_rows(tmp_path: Path) -> None:
    made.begin(tmp_path / "run").close()
    run = Run.open(tmp_path / "run")
    assert run.verification() == ()
    (run.path / "verification.csv").write_text(verification_csv([verification_row()]), encoding="utf-8")
    assert run.verification() == (verification_row(),)


def changed(**fields: Any) -> str:
    return verification_csv([verification_row() | fields])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "not a table of verification of this release: the column 'pair' is missing"),
        (changed()[:-3], "truncated"),
        (changed() + "x\n", f"line 3: found 1 fields, {len(COLUMNS)} are expected"),
        (changed(gamma="four"), "line 2, column gamma: found 'four', allowed: a whole number of at least 1; "),
        (changed(gamma=None), "line 2, column gamma: found '', allowed: a whole number of at least 1; "),
        (
            changed(blocks=1.5),
            "line 2, column blocks: found '1.5', allowed: a whole number of at least 0, or nothing; ",
        ),
        (changed(cost_error="nan"), "line 2, column cost_error: found 'nan', allowed: a number, or nothing; "),
        (changed(gamma=-3), "line 2, column gamma: found '-3', allowed: a whole number of at least 1; "),
        (changed(speedup_measured=-1.0), "speedup_measured: found '-1.0', allowed: a number above 0, or nothing; "),
        (changed(lossless="yes"), "line 2, column lossless: found 'yes', allowed: True or False; "),
        (changed(lossless=None), "line 2, column lossless: found '', allowed: True or False; "),
        (changed(rounds_agree=1), "line 2, column rounds_agree: found '1', allowed: True or False, or nothing; "),
        (changed(pair="quote").replace("quote", '"'), "not a CSV file"),
    ],
)
def test_a_damaged_file_is_one_line_with_its_place(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "verification.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=found) as error:
        read_verification(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_table_of_an_earlier_release_lacks_what_is_unknown_there(tmp_path: Path) -> None:
    path = tmp_path / "verification.csv"
    rows = verification_csv([verification_row()]).splitlines()
    assert rows[0].endswith(",texts_same,texts_tied,texts_differ")
    path.write_text("".join(f"{line.rsplit(',', 3)[0]}\n" for line in rows), encoding="utf-8")
    unknown = dict.fromkeys(("texts_same", "texts_tied", "texts_differ"))
    assert read_verification(path) == (verification_row() | unknown,)
    rows = verification_csv([], [policy_row()]).splitlines()
    assert rows[0].endswith(",off_path,error_low,error_high")
    path.write_text("".join(f"{line.rsplit(',', 2)[0]}\n" for line in rows), encoding="utf-8")
    assert read_verification(path) == (policy_row(error_low=None, error_high=None),)


def test_a_missing_file_names_its_maker(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing; make it with `specgauge run`$"):
        read_verification(tmp_path / "verification.csv")


def test_rows_of_policies_come_back_beside_those_of_gammas(tmp_path: Path) -> None:
    made.begin(tmp_path / "run").close()
    run = Run.open(tmp_path / "run")
    rows, policies = [verification_row()], [policy_row(), policy_row(policy="renewal", error=None, off_path=None)]
    assert list(policies[0]) == [*COLUMNS, *POLICY_COLUMNS]
    (run.path / "verification.csv").write_text(verification_csv(rows, policies), encoding="utf-8")
    assert run.verification() == tuple(rows)
    assert run.verified_policies() == tuple(policies)
    (run.path / "verification.csv").write_text(verification_csv(rows), encoding="utf-8")
    assert run.verified_policies() == ()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            verification_csv([], [policy_row(looks="many")]),
            "column looks: found 'many', allowed: a whole number of at least 0, or",
        ),
        (
            verification_csv([], [policy_row(policy=None)]),
            "column gamma: found '', allowed: a whole number of at least 1; ",
        ),
        (verification_csv([], [policy_row()]).replace(",looks,", ",glances,"), "the column 'looks' is missing"),
    ],
)
def test_damaged_rows_of_policies_are_one_line(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "verification.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=found) as error:
        read_verification(path)
    assert "\n" not in str(error.value)
