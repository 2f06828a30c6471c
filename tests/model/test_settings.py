"""Provenance keeps the order of trust."""

from specgauge.model.settings import Provenance


def test_a_figure_is_as_good_as_its_weakest_part() -> None:
    rising = ["measured", "interpolated", "extrapolated", "predicted", "assumed"]
    assert [Provenance(value).label for value in range(5)] == rising
    assert max(Provenance.EXTRAPOLATED, Provenance.INTERPOLATED) is Provenance.EXTRAPOLATED
