"""The published MagicDec table: the roofline's held-out error is below the line's for each target and part."""

from pathlib import Path

import pytest

from specgauge.model.roofline.calibration import Axis
from specgauge.reports import roofline
from specgauge.reports.roofline import Comparison, TableGroup, compare, main, report

TABLE = Path(__file__).parents[1] / "golden" / "magicdec.csv"
HEAD = "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\n"


@pytest.fixture(scope="module")
def printed() -> tuple[str, dict[str, Comparison]]:
    """What the command prints of the table, with every form, and the comparisons behind it by target."""
    texts: list[str] = []
    found: dict[str, Comparison] = {}

    def kept(group: TableGroup, *, by: Axis) -> Comparison:
        found[group.target] = compare(group, by=by)
        return found[group.target]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(roofline, "compare", kept)
        assert main([str(TABLE), "--forms"], texts.append) == 0
    return texts[0], found


@pytest.fixture(scope="module")
def comparisons(printed: tuple[str, dict[str, Comparison]]) -> dict[str, Comparison]:
    return printed[1]


def test_both_targets_are_compared_on_all_their_rows(comparisons: dict[str, Comparison]) -> None:
    assert {name: each.group.rows for name, each in comparisons.items()} == {"Llama2-7B-32K": 30, "Llama3.1-8B": 17}
    assert {name: sorted(each.line["t_decode_s"].by_value()) for name, each in comparisons.items()} == {
        "Llama2-7B-32K": [32, 48, 64, 128],
        "Llama3.1-8B": [32, 64, 128, 256],
    }


@pytest.mark.parametrize(
    ("target", "part", "line_error"),
    [
        ("Llama2-7B-32K", "t_decode_s", 0.0837),
        ("Llama2-7B-32K", "t_verify_s", 0.0751),
        ("Llama3.1-8B", "t_decode_s", 0.0603),
        ("Llama3.1-8B", "t_verify_s", 0.0273),
    ],
)
def test_the_roofline_beats_the_line_on_batch_sizes_it_has_not_seen(
    comparisons: dict[str, Comparison], target: str, part: str, line_error: float
) -> None:
    comparison = comparisons[target]
    line, alone, both = comparison.line[part], comparison.alone[part], comparison.both[part]
    assert line.mean_abs_error == pytest.approx(line_error, abs=5e-5)
    assert alone.mean_abs_error < line.mean_abs_error
    assert both.mean_abs_error < line.mean_abs_error
    assert max(alone.mean_abs_error, both.mean_abs_error) < 0.025


def test_few_numbers_that_a_machine_can_have(comparisons: dict[str, Comparison]) -> None:
    for comparison in comparisons.values():
        calibration = comparison.calibration
        assert len(calibration.form.free) == 3
        assert 0.8 < calibration.efficiency.bandwidth_fraction < 1.0
        assert 0.2 < calibration.efficiency.flops_fraction < 0.6
        assert calibration.unidentified == ()
    launches = [comparison.calibration.efficiency.launch_s for comparison in comparisons.values()]
    assert max(launches) < 1.1 * min(launches)


def test_the_report_says_where_the_roofline_misses(printed: tuple[str, dict[str, Comparison]]) -> None:
    text = printed[0]
    assert "misses T_decode at B = 64, s = 8000" in text
    assert "no roofline fits both T_decode at B = 64, s = 8000 and s = 16000" in text
    assert "2.79 TB/s, the card's peak is 2.04" in text
    assert "the line is nearer for T_verify at B = 64" in text
    assert "8xH100" in text


def test_the_forms_that_were_tried_can_be_printed(printed: tuple[str, dict[str, Comparison]]) -> None:
    text = printed[0][printed[0].index("Forms tried") :]
    assert text.index("sum, waves ") < text.index("sum, balanced ") < text.index("maximum, waves ")


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "".join(row + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], r".*t\.csv: found no rows, allowed: .*"),
        (["Llama2-7B,8xA100,32,1,2,x,0.1"], r".*t\.csv:2: t_decode_s: found 'x', allowed: a number"),
        (
            ["Lama,8xA100,32,1,2,0.1,0.1"],
            r"target: found 'Lama', allowed: gemma-2-9b, .*; say which with --shape Lama=.*",
        ),
        (["Llama2-7B,8xZ100,32,1,2,0.1,0.1"], r"gpu: found 'Z100', allowed: a100.*; say which with --hardware Z100=.*"),
        (["Llama2-7B,8xA100,32,1,2,0.1,0.1"], r".*t\.csv: found no target and machine with 8 rows .*"),
        (["Llama2-7B,8xA100,32,1,2,0,0.1"], r"time_s \(item 1\): found 0, allowed: seconds, above 0"),
    ],
)
def test_tables_that_cannot_be_read(
    tmp_path: Path, rows: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=f"^{line}$") as error:
        report(table(tmp_path, *rows))
    assert main([str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err == f"{error.value}\n"


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("target,gpu,batch_size\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"t\.csv: column 'context' is missing, allowed: a table with target, .*$"):
        report(path)


def test_names_of_the_table_can_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = TABLE.read_text(encoding="utf-8").splitlines()
    kept = [row for row in rows if "Llama2-7B-32K" in row and "8xA100" in row]
    path = tmp_path / "renamed.csv"
    text = "\n".join([head, *kept]).replace("Llama2-7B-32K", "mine").replace("A100", "Z100")
    path.write_text(text + "\n", encoding="utf-8")
    assert main([str(path), "--shape", "mine=llama-2-7b", "--hardware", "Z100=a100-80gb-sxm"]) == 0
    printed = capsys.readouterr().out
    assert "mine on 8xZ100, 30 rows" in printed
    assert "Forms tried" not in printed
    assert main([str(path), "--shape", "mine"]) == 2
    assert capsys.readouterr().err == "--shape: found 'mine', allowed: NAME=VALUE\n"
