"""Tags keep the order of trust."""

from specgauge.model.known import Known, labels


def test_a_figure_is_known_as_its_weakest_part_is() -> None:
    assert Known.MEASURED.weaker(Known.INTERPOLATED) is Known.INTERPOLATED
    assert Known.EXTRAPOLATED.weaker(Known.INTERPOLATED) is Known.EXTRAPOLATED
    assert labels([[0, 1], [2, 3]]) == ["measured", "interpolated", "extrapolated", "assumed"]
