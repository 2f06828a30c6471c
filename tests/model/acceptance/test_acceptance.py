"""What rounds yield: the first rows of it."""

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance


def test_the_first_rows_of_everything_that_has_replicates() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    accepted = Acceptance(
        gammas=np.array([1, 2]),
        tokens_per_round=1.0 + rows,
        full_acceptance=rows / 8,
        provenance=np.zeros(2, dtype=np.int64),
        draft_count_distribution=np.arange(18.0).reshape(3, 2, 3),
    )
    few = accepted.first(2)
    assert few.tokens_per_round.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert few.full_acceptance.tolist() == [[0.0, 0.125], [0.25, 0.375]]
    assert few.draft_count_distribution is not None
    assert few.draft_count_distribution.tolist() == np.arange(12.0).reshape(2, 2, 3).tolist()
    assert few.drafts_per_round.shape == (2, 2)
    (estimate,) = accepted.first(1).full_acceptance
    alone = Acceptance(
        gammas=accepted.gammas, tokens_per_round=rows[0], full_acceptance=estimate, provenance=accepted.provenance
    )
    assert alone.first(1).tokens_per_round.tolist() == [0.0, 1.0]
