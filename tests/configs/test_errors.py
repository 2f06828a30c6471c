import math

import pytest

from specgauge.configs.errors import nearest, shown


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
