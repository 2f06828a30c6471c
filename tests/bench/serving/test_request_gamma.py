"""Whether a server heeds the γ of a request: told by the drafts that it counts, for it ignores without a word."""

from typing import Any

import pytest

from specgauge.bench.serving.request_gamma import gamma_fields, unheeded
from specgauge.bench.serving.streams import OpenAIClient
from tests.bench.serving.blocks import engine_of, with_client


def why(gammas: tuple[int, ...] = (0, 1, 2, 4), **settings: Any) -> str | None:
    async def ask(client: OpenAIClient) -> str | None:
        return await unheeded(client, gammas)

    return with_client(engine_of(**{"gamma": max(gammas), "alpha": 0.7, **settings}), ask)


@pytest.mark.parametrize("gammas", [(0, 1, 2, 4), (0, 2, 4), (0, 3), (2, 4)])
def test_a_server_that_heeds_it(gammas: tuple[int, ...]) -> None:
    assert why(gammas, n_max_honoured=True) is None


@pytest.mark.parametrize(("gammas", "asked"), [((0, 1, 4), 0), ((2, 4), 2)])
def test_a_server_that_ignores_it_without_a_word(gammas: tuple[int, ...], asked: int) -> None:
    told = why(gammas)
    assert told is not None
    assert told.startswith("http://engine/v1: ")
    assert told.endswith(f" of a request with speculative.n_max: {asked}: this build does not take γ from a request")


@pytest.mark.parametrize("settings", [{"alpha": 0.0, "finds": 0.0}, {"has_metrics": False}, {"gamma": 0}])
def test_what_cannot_be_seen_is_not_taken_for_granted(settings: dict[str, Any]) -> None:
    assert why(n_max_honoured=True, **settings) is not None


def test_a_server_that_fails_is_told() -> None:
    with pytest.raises(ValueError, match="status 200, got 500"):
        why(fails_every=1)


def test_both_spellings_are_sent() -> None:
    assert gamma_fields(3) == {"speculative": {"n_max": 3}, "speculative.n_max": 3}
