import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specgauge.configs.errors import ConfigError, place_name
from specgauge.configs.yaml_reader import MOST_VALUES, Source, dump_for_anyone, dump_yaml, read_yaml

FILE = Source("file.yaml")


def value_of(text: str) -> object:
    document = read_yaml(text, FILE)
    assert not document.faults
    return document.value


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3, 1E5, 1e+3, -1.5e-2, .5, 1., -.inf", [0.001, 100000.0, 1000.0, -0.015, 0.5, 1.0, -math.inf]),
        ("1_000, 010, 0x10, 0o10, -0b11, +7", [1000, 10, 16, 8, -3, 7]),
        ("true, False, ~, Null", [True, False, None, None]),
        ("1:6, 1:8:2, yes, off, no, 2026-01-01", ["1:6", "1:8:2", "yes", "off", "no", "2026-01-01"]),
        ("1e, e3, 1.2.3, 0b12, '1e-3', !!str 5, =", ["1e", "e3", "1.2.3", "0b12", "1e-3", "5", "="]),
        (".nan, .NaN", [math.nan, math.nan]),
    ],
)
def test_a_scalar_is_what_it_looks_like(text: str, values: list[object]) -> None:
    assert repr(value_of(f"[{text}]")) == repr(values)


def test_every_key_and_item_has_its_line() -> None:
    text = "a: 1\nb:\n  - x\n  - c: 2\n\n    d: >\n      long\n      text\n"
    lines = {place_name(keys): line for keys, line in read_yaml(text, FILE).lines.items()}
    assert lines == {"": 1, "a": 1, "b": 2, "b[0]": 3, "b[1]": 4, "b[1].c": 4, "b[1].d": 6}


def test_merged_keys_yield_to_written_ones_and_keep_their_lines() -> None:
    text = "base: &b\n  x: 1\n  y: 2\nother: &o {y: 3, z: 4}\nmade:\n  <<: [*b, *o]\n  x: 5\n"
    document = read_yaml(text, FILE)
    assert document.value == {"base": {"x": 1, "y": 2}, "other": {"y": 3, "z": 4}, "made": {"x": 5, "y": 2, "z": 4}}
    assert [document.lines["made", key] for key in "xyz"] == [7, 3, 4]


def test_a_fault_within_a_merged_mapping_is_kept() -> None:
    (fault,) = read_yaml("made:\n  <<: {x: 1, x: 2}\n", FILE).faults
    assert (fault.code, fault.keys, fault.line) == ("repeated_key", ("made", "x"), 2)


def test_aliases_are_copies() -> None:
    value = value_of("a: &x [1]\nb: *x\n")
    assert isinstance(value, dict)
    value["a"].append(2)
    assert value["b"] == [1]


HUGE = "a0: &a0 [1, 1, 1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "source", "line"),
    [
        (HUGE, FILE, rf"^file\.yaml:\d+: expected at most {MOST_VALUES} values, got"),
        ("[" * 1_000, FILE, r"^file\.yaml: expected lists and mappings nested some hundred levels deep at most"),
        ("[1,\n 2", Source("--set a=b", option=1), "^--set a=b: not valid YAML: while parsing a flow sequence"),
    ],
    ids=["aliases that multiply", "endless nesting", "a source without lines"],
)
def test_what_is_no_document_is_one_line(text: str, source: Source, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        read_yaml(text, source)
    assert "\n" not in str(caught.value)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcñ:#-?1e. ", max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_what_is_written_is_read_back(value: object) -> None:
    assert repr(value_of(dump_yaml(value))) == repr(value)


def test_what_is_written_for_anyone_reads_back_equal_by_every_reader() -> None:
    words = [
        "1e-3",
        "yes",
        "no",
        "on",
        "2026-01-01",
        "1:30",
        "0o17",
        "010",
        "~",
        "",
        "a: b",
        "1_000",
        ".5",
        "null",
        "é\u2028\n",
    ]
    value = {"words": words, **{word or "empty": 1e-5 for word in words}, "numbers": [0.1, 1e300, -0.0, 3, None, True]}
    text = dump_for_anyone(value)
    assert read_yaml(text, Source("x")).value == yaml.safe_load(text) == value
