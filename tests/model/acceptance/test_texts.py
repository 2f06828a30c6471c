import numpy as np
import pytest

from specgauge.model.acceptance.texts import batch_numbers, pad_texts, sum_by_prompt

PROMPT = [2, 0, 0, 2, 0, 0]
REPETITION = [0, 1, 0, 0, 1, 1]
POSITION = [1, 2, 0, 0, 0, 1]
REASON = ["eos", "length", "length", "eos", "length", "length"]


def test_texts_are_sorted_and_padded_with_zeros() -> None:
    texts = pad_texts(
        PROMPT, REPETITION, POSITION, REASON, {"a": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "token": [1, 2, 3, 4, 5, 6]}
    )
    assert texts.prompts.tolist() == [0, 0, 2]
    assert texts.repetitions.tolist() == [0, 1, 0]
    assert texts.lengths.tolist() == [1, 3, 2]
    assert texts.ended_by_eos.tolist() == [False, False, True]
    assert texts.columns["a"].tolist() == [[0.3, 0, 0], [0.5, 0.6, 0.2], [0.4, 0.1, 0]]
    assert texts.columns["token"].tolist() == [[3, 0, 0], [5, 6, 2], [4, 1, 0]]
    assert texts.columns["token"].dtype == np.int64


def test_sums_by_prompt() -> None:
    assert sum_by_prompt([[1, 2], [10, 20], [100, 200]], [5, 1, 5]).tolist() == [[10, 20], [101, 202]]
    with pytest.raises(ValueError, match="allowed is one per text"):
        sum_by_prompt([1.0, 2.0], [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": [1, 3, 0, 0, 0, 1]}, "prompt 0, repetition 1: found position 3 in place of 2"),
        ({"position": [1, 1, 0, 0, 0, 1]}, "prompt 0, repetition 1: found position 1 in place of 2"),
        ({"position": [1, 2, 0, 2, 0, 1]}, "prompt 2, repetition 0: found position 1 in place of 0"),
        ({"end_reason": ["eos", "length", "length", "length", "length", "length"]}, "found end_reason 'eos'"),
        ({"end_reason": ["stop"] * 6}, "found end_reason 'stop'; allowed is one of eos, length"),
        ({"columns": {"a": [1.0]}}, r"acceptance column a: found shape \(1,\); allowed is \(6,\)"),
        ({"repetition": [0]}, "acceptance column repetition"),
    ],
)
def test_tables_that_are_no_texts_are_one_line_errors(change: dict[str, object], message: str) -> None:
    table: dict[str, object] = {
        "prompt": PROMPT,
        "repetition": REPETITION,
        "position": POSITION,
        "end_reason": REASON,
        "columns": {},
    }
    with pytest.raises(ValueError, match=message) as caught:
        pad_texts(**(table | change))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_empty_table_says_so() -> None:
    with pytest.raises(ValueError, match="found no recorded position"):
        pad_texts([], [], [], [], {})


def test_blocks_of_the_same_prompts_have_one_number_in_whatever_order_they_stand() -> None:
    assert batch_numbers([(3, 5), (1, 2), (5, 3), (2, 2), (3, 5, 5)]).tolist() == [0, 1, 0, 2, 0]
    assert batch_numbers([]).tolist() == []
