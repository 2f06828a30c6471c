import math

import pytest
from pydantic import BaseModel, ValidationError

from specgauge.configs.errors import explain, nearest, shown
from specgauge.configs.fields import Contexts, Seconds
from specgauge.configs.hardware import Peaks


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((None, True, 0, 1.5, math.nan, -math.inf), ["nothing", "true", "0", "1.5", ".nan", "-.inf"]),
        (("a", "a\nb", "x" * 61, b"x"), ["'a'", r"'a\nb'", f"'{'x' * 60}…'", "a value of type bytes"]),
        (({}, {"a": 1}, [], (1,)), ["an empty mapping", "a mapping", "an empty list", "a list"]),
    ],
)
def test_values_are_shown_as_a_person_wrote_them(values: tuple[object, ...], texts: list[str]) -> None:
    assert [shown(value) for value in values] == texts


class Shown(BaseModel):
    one: Seconds | None
    axis: Contexts
    flags: tuple[bool, ...]
    peaks: Peaks
    text: str


def test_what_is_expected_is_read_off_the_json_schema() -> None:
    with pytest.raises(ValidationError) as caught:
        Shown.model_validate({"one": 0, "axis": "x", "peaks": {"int8": {"value": 1}}, "text": 1})
    assert [fault.words for fault in explain(caught.value, Shown, {"one": 0, "axis": "x", "peaks": {}, "text": 1})] == [
        "one: expected a number above 0 seconds, or null, got 0",
        "axis: expected an integer from 1 to 16777216, a list of these, or a range such as 1:8 or 1:8:2, got 'x'",
        "missing key 'flags': expected a list, each true or false",
        "missing key 'source' in peaks.int8: expected text",
        "text: expected text, got 1; put it in quotes if it is meant as text",
    ]


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("GAMA", ["gamma", "context"], "gamma"),
        ("quikstart", ["gpu", "quickstart", "wide"], "quickstart"),
        ("temp", ["temperature", "top_k"], "temperature"),
        ("verify", ["validate", "seed"], "validate"),
        ("to", ["top_k_limit", "top_p_limit"], None),
        ("", ["gamma"], None),
        ("zzz", ["gamma", "context"], None),
    ],
)
def test_the_nearest_name(name: str, known: list[str], found: str | None) -> None:
    assert nearest(name, known) == found


def test_thousands_of_faults_are_told_in_a_moment() -> None:
    """Every fault asks which section is meant, by the keys of the whole mapping."""
    written = {"float32": 1e12, **{f"float{n}": 1 for n in range(100, 2100)}}
    with pytest.raises(ValidationError) as error:
        Peaks.model_validate(written)
    faults = explain(error.value, Peaks, written)
    assert [fault.code for fault in faults] == ["model_type", *["extra_forbidden"] * 2000]
    assert faults[-1].words.startswith("unknown key 'float2099'")
