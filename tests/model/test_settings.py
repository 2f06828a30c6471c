"""Provenance keeps the order of trust."""

import math

import numpy as np

from specgauge.model.checks import finite_or_none
from specgauge.model.settings import Provenance


def test_a_figure_is_as_good_as_its_weakest_part() -> None:
    rising = ["measured", "interpolated", "extrapolated", "predicted", "assumed"]
    assert [Provenance(value).label for value in range(5)] == rising
    assert max(Provenance.EXTRAPOLATED, Provenance.INTERPOLATED) is Provenance.EXTRAPOLATED


def test_what_is_no_number_is_unknown() -> None:
    assert finite_or_none(np.float64(1.5)) == 1.5
    assert [finite_or_none(value) for value in (math.nan, math.inf, -math.inf)] == [None] * 3
