from __future__ import annotations

import pytest

from specgauge.configs.faults import missing_key, unknown_key

from specgauge.configs.errors import nearest, place_name, shown, value_fault


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        (0, "0"),
        (1.5, "1.5"),
        (float("nan"), ".nan"),
        (float("-inf"), "-.inf"),
        ("a", "'a'"),
        ("a\nb", r"'a\nb'"),
        ("x" * 61, "'" + "x" * 60 + "…'"),
        ({}, "an empty mapping"),
        ({"a": 1}, "a mapping"),
        ([], "an empty list"),
        ((1,), "a list"),
        (b"x", "a value of type bytes"),
    ],
)
def test_values_are_shown_as_a_person_wrote_them(value: object, text: str) -> None:
    assert shown(value) == text


def test_places_are_keys_joined_by_dots_and_indices_in_brackets() -> None:
    assert place_name(("pairs", 0, "draft", "dtype")) == "pairs[0].draft.dtype"


def test_words_name_the_place_once() -> None:
    assert value_fault(("grid", "gamma", 1), 0, "x").words == "grid.gamma[1]: found 0, allowed: x"
    assert value_fault((), 0, "x").words == "found 0, allowed: x"
    assert unknown_key((), "sed", ["seed"]).words == (
        "unknown key 'sed' at the top level; did you mean 'seed'? allowed: seed"
    )
    assert missing_key(("pairs", 0), "draft", "y").words == "missing key 'draft' in pairs[0]; it takes y"
    assert value_fault(("gamma",), 0, "x").under(("grid",)).words == "grid.gamma: found 0, allowed: x"


def test_nearest_ignores_case_completes_beginnings_and_gives_up_on_strangers() -> None:
    assert nearest("GAMA", ["gamma", "context"]) == "gamma"
    assert nearest("quikstart", ["gpu", "quickstart", "wide"]) == "quickstart"
    assert nearest("temp", ["temperature", "top_k"]) == "temperature"
    assert nearest("to", ["top_k_limit", "top_p_limit"]) is None
    assert nearest("", ["gamma"]) is None
    assert nearest("zzz", ["gamma", "context"]) is None
