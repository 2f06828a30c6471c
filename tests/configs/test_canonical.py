import hashlib
import math

import pytest

from specgauge.configs.canonical import canonical_json, short_hash, strict_loads


def test_order_of_keys_does_not_matter() -> None:
    assert canonical_json({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert short_hash({"b": 1, "a": 2}) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()[:12]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_form_for_what_json_has_no_form_for(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": value})


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": Infinity}', '{"x": -Infinity}', '{"x": 1, "x": 2}'])
def test_strict_reading_refuses_constants_and_repeated_keys(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|'x' appears twice"):
        strict_loads(text)
