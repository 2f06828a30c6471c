"""Files of other programs: every form of JSON that they come in, and text that is none."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.sweeps.imports.engine_run import Given
from specgauge.sweeps.imports.files import Record, json_records
from specgauge.sweeps.imports.formats import FORMATS
from tests.sweeps.imports.engines import written


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1}', [1]),
        ('[{"a": 1}, {"a": 2}]', [1, 2]),
        ('{"a": 1}\n{"a": 2}\n', [1, 2]),
        ('\ufeff{"a": 1}\r\n\r\n{"a": 2}\r\n', [1, 2]),
        ('data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n', [1, 2]),
        ('0.1\tdata: {"a": 1}\n0.2\t\n0.3\tdata: [DONE]\n', [1]),
    ],
)
def test_forms_of_json(tmp_path: Path, text: str, values: list[int]) -> None:
    assert [record.whole("a") for record in json_records(written(tmp_path / "it", text))] == values


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1}\n{"a": 2', "line 2: truncated or not JSON"),
        ('{"a": 1}\n{"a": NaN}\n', "line 2: truncated or not JSON: NaN is not JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ("[" * 100_000, "nested too deeply"),
        ("hello", "truncated or not JSON"),
        ("hello\nthere", "not JSON"),
        ('{"a": 1}\n[2]\n', "line 2: expected a mapping, got [2]"),
    ],
)
def test_what_is_no_json_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path / "it", text)
    with pytest.raises(ValueError, match=r".*") as error:
        list(json_records(path))
    assert told in str(error.value)
    assert str(error.value).startswith(str(path))


def test_a_device_is_not_read() -> None:
    with pytest.raises(ValueError, match="expected a regular file, got a device"):
        json_records(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "it is missing"), (True, "got True"), ("x", "got 'x'"), (-1, "got -1"), ([1], r"got \[1\]")],
)
def test_a_number_is_a_number(value: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Record(where="it", values={"a": value}).number("a")


def test_numbers_may_be_text_where_a_format_has_them_so() -> None:
    record = Record(where="it", values={"a": "1.5"})
    assert record.number("a", is_text=True) == 1.5
    with pytest.raises(ValueError, match="expected a number of at least 0, got 'inf'"):
        Record(where="it", values={"a": "inf"}).number("a", is_text=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "meta_info", "metrics", "usage", "timings", "choices", "spec_decode_acceptance", "acceptance_histogram", "n_prompt",
    "num_spec_steps", "spec_verify_ct", "completion_tokens", "predicted_n", "predicted_ms",
    "Acceptance_Length_Histogram", "request_latency", "output_sequence_length", "completed", "total_output_tokens",
    "steps", "topk", "acc_length", "pl",
    "num_draft_tokens", "step_time", "n_gen", "avg_ns", "samples_ns", "new_tokens", "accept_lengths", "decoding_steps",
)  # fmt: skip
"""Fields that formats have, so that what is drawn comes as far as their values."""
mappings = st.dictionaries(st.sampled_from(NAMES), json_values, max_size=6)
nested = st.dictionaries(st.sampled_from(NAMES), mappings | json_values, max_size=6)


@pytest.mark.parametrize("name", [form.name for form in FORMATS if form.name not in ("table", "golden")])
@given(content=nested)
def test_any_json_is_runs_or_one_line_of_error(name: str, content: dict[str, object]) -> None:
    form = next(form for form in FORMATS if form.name == name)
    with TemporaryDirectory() as folder:
        path = written(Path(folder) / "it.json", json.dumps(content, allow_nan=True))
        with suppress(ValueError):
            form.read([path], Given())
