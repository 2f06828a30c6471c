"""Tags keep the order of trust."""

import math

import numpy as np

from specgauge.model.provenance import Known, finite_or_none, labels


def test_a_figure_is_known_as_its_weakest_part_is() -> None:
    assert Known.MEASURED.weaker(Known.INTERPOLATED) is Known.INTERPOLATED
    assert Known.EXTRAPOLATED.weaker(Known.INTERPOLATED) is Known.EXTRAPOLATED
    assert labels([[0, 1], [2, 3]]) == ["measured", "interpolated", "extrapolated", "assumed"]


def test_what_is_no_number_is_unknown() -> None:
    assert finite_or_none(np.float64(1.5)) == 1.5
    assert [finite_or_none(value) for value in (math.nan, math.inf, -math.inf)] == [None] * 3
