"""What rounds yield: the first rows of it."""

import numpy as np

from tests.model.made import made_acceptance


def test_the_first_rows_of_everything_that_has_replicates() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    accepted = made_acceptance(1 + rows, rows / 8, draft_count_distribution=np.arange(18.0).reshape(3, 2, 3))
    few = accepted.first(2)
    assert few.tokens_per_round.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert few.full_acceptance.tolist() == [[0.0, 0.125], [0.25, 0.375]]
    np.testing.assert_array_equal(few.draft_count_distribution, np.arange(12.0).reshape(2, 2, 3))
    assert few.drafts_per_round.shape == (2, 2)
    alone = accepted.estimate
    assert alone.tokens_per_round.tolist() == alone.first(1).tokens_per_round.tolist() == [1.0, 2.0]
    assert alone.drafts_per_round.shape == (2,)
