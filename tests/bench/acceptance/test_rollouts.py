"""Rollouts: the distribution of rejected drafts, signals of a plain forward, reproducible draws, ends of contexts."""

from typing import Any

import numpy as np
import pytest
import torch

from specgauge.bench.acceptance.rollouts import Drafting, measure_rollouts, rejected_draft_masses
from specgauge.bench.decoding.records import NonFiniteLogitsError, Text
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, FILTERED, GREEDY, Make, next_probs, plain
from tests.bench.scripted import always, scripted, spread, written

NUMBERS = [3, 4, 9]
SETTINGS = [("ratio", "same"), ("match", "same"), ("ratio", "greedy")]


def text(tokens: tuple[int, ...], prompt: int = 0) -> Text:
    return written(tokens, prompt, prompt=(0,))


def texts_of(target: LoadedModel, settings: SamplingSettings, new: int = 12) -> list[Text]:
    return plain(target, settings, new=new, numbers=NUMBERS)


def rollouts(
    target: LoadedModel, draft: LoadedModel, texts: list[Text], settings: SamplingSettings, **options: Any
) -> Any:
    given: dict[str, Any] = {"acceptance_rule": "ratio", "draft_sampling": "same", "batch_size": 2, "seed": 5}
    given |= {"starts_per_text": 4, "depth": 3, **options}
    return measure_rollouts(target, draft, texts, settings, **given)


@pytest.mark.parametrize(
    ("rule", "sampling", "token", "expected"),
    [
        ("ratio", "same", 0, [0.0, 0.1, 0.3, 0.0]),
        ("ratio", "same", 1, None),  # the draft has more of it than the target: never rejected
        ("match", "same", 0, [0.0, 0.4, 0.4, 0.0]),
        ("match", "same", 2, [0.2, 0.4, 0.0, 0.0]),
        ("ratio", "greedy", 0, [0.0, 1.0, 0.0, 0.0]),
        ("match", "greedy", 1, None),
    ],
)
def test_the_distribution_of_the_rejected_draft(
    rule: Any, sampling: Any, token: int, expected: list[float] | None
) -> None:
    target = torch.tensor([0.5, 0.3, 0.1, 0.1])
    draft = torch.tensor([0.2, 0.4, 0.4, 0.0]) if sampling == "same" else torch.tensor([0.0, 1.0, 0.0, 0.0])
    drafting = Drafting(settings=DRAWN, acceptance_rule=rule, draft_sampling=sampling)
    masses, can_be = rejected_draft_masses(target, draft, torch.tensor(token), drafting)
    assert bool(can_be) == (expected is not None)
    if expected is not None:
        np.testing.assert_allclose(masses.numpy(), expected, atol=1e-7)


@pytest.mark.parametrize("rule", ["ratio", "match"])
def test_rejected_and_accepted_drafts_together_are_distributed_as_the_draft(rule: Any) -> None:
    """Over all y of the target: P(draft x kept) + P(rejected) · P(draft x is the rejected one) = P(draft x)."""
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.rand(2, 6, generator=generator, dtype=torch.float64).softmax(dim=-1)
    drafting = Drafting(settings=DRAWN, acceptance_rule=rule, draft_sampling="same")
    total = torch.zeros(6, dtype=torch.float64)
    for token in range(6):
        masses, can_be = rejected_draft_masses(target, draft, torch.tensor(token), drafting)
        kept = draft[token] if rule == "match" else (draft[token] / target[token]).clamp(max=1.0)
        total[token] += target[token] * kept
        if can_be:
            total += target[token] * (1 - kept) * masses / masses.sum()
    torch.testing.assert_close(total, draft)


@pytest.mark.parametrize(("rule", "expected"), [("ratio", [0.0, 0.25, 0.75, 0.0]), ("match", [0.0, 0.5, 0.5, 0.0])])
def test_chains_begin_and_go_on_with_these_distributions(rule: Any, expected: list[float]) -> None:
    target, draft = (scripted(spread(*row), vocabulary=4) for row in ((0.5, 0.3, 0.1, 0.1), (0.2, 0.4, 0.4, 0.0)))
    texts = [text((0,) * 101, prompt) for prompt in range(20)]
    frame = rollouts(target, draft, texts, DRAWN, acceptance_rule=rule, depth=2, starts_per_text=100, batch_size=200)
    for depth, probs in ((1, expected), (2, [0.2, 0.4, 0.4, 0.0])):
        tokens = frame[frame["depth"] == depth]["token"]
        assert len(tokens) == 2000
        found = np.bincount(tokens, minlength=4) / 2000
        np.testing.assert_allclose(found, probs, atol=4.5 * 0.5 / 2000**0.5)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN, FILTERED], ids=["greedy", "draw", "filters"])
@pytest.mark.parametrize(("rule", "sampling"), SETTINGS)
def test_signals_and_tokens_are_those_of_a_plain_forward(
    tiny_model: Make, settings: SamplingSettings, rule: Any, sampling: Any
) -> None:
    target, draft = tiny_model(scale=0.2), tiny_model(seed=1, scale=0.2)
    texts = texts_of(target, settings)
    frame = rollouts(target, draft, texts, settings, acceptance_rule=rule, draft_sampling=sampling)
    assert len(frame) > 12
    by_key = {(found.prompt, found.repetition): found for found in texts}
    for (prompt, repetition, start), chain in frame.groupby(["prompt", "repetition", "start"]):
        whole = by_key[prompt, repetition]
        history = [*whole.prompt_tokens, *whole.tokens[: start + 1]]
        assert chain["depth"].tolist() == [1, 2, 3]
        assert chain["token"].iloc[0] != whole.tokens[start + 1] or rule == "ratio"
        for row in chain.itertuples():
            if sampling == "greedy":
                assert row.token == int(next_probs(draft, history, settings).argmax())
            assert next_probs(draft, history, settings)[row.token] > 0
            history.append(int(row.token))
            own = next_probs(draft, history, DRAWN)
            assert row.top_prob == pytest.approx(float(own.max()), abs=1e-5)
            assert row.entropy_nats == pytest.approx(float(-(own * own.log()).sum()), abs=1e-4)


@pytest.mark.parametrize(("rule", "sampling"), SETTINGS)
def test_a_chain_is_a_function_of_its_start_alone(tiny_model: Make, rule: Any, sampling: Any) -> None:
    target, draft = tiny_model(scale=0.2), tiny_model(seed=1, scale=0.2)
    texts = texts_of(target, FILTERED)
    options: dict[str, Any] = {"acceptance_rule": rule, "draft_sampling": sampling}
    told: list[Any] = []
    together = rollouts(target, draft, texts, FILTERED, progress=told.append, **options)
    assert (told == sorted(told), told[-1]) == (True, len(texts))
    keys = ["prompt", "repetition", "start", "depth", "token"]
    for batch_size, chunk in ((1, 128), (2, 3), (50, 1)):
        alone = rollouts(target, draft, texts[::-1], FILTERED, batch_size=batch_size, chunk=chunk, **options)
        assert alone[keys].equals(together[keys])
        np.testing.assert_allclose(alone["entropy_nats"], together["entropy_nats"], atol=1e-5)
    more = rollouts(target, draft, texts, FILTERED, starts_per_text=6, depth=5, **options)
    inside = more.merge(together[["prompt", "start"]].drop_duplicates())
    assert inside[inside["depth"] <= 3][keys].reset_index(drop=True).equals(together[keys])
    assert not rollouts(target, draft, texts, FILTERED, seed=6, **options)[keys].equals(together[keys])


def test_starts_are_distinct_and_spread_over_the_text() -> None:
    target, draft = scripted(spread(0.9, 0.1), vocabulary=2), scripted(spread(0.1, 0.9), vocabulary=2)
    texts = [text((0,) * 41, prompt) for prompt in range(30)]
    frame = rollouts(target, draft, texts, DRAWN, starts_per_text=10, depth=1, batch_size=30)
    assert (frame.groupby("prompt")["start"].nunique() == 10).all()
    counts = np.bincount(frame["start"], minlength=40)
    assert counts.size == 40
    assert counts.max() <= 20  # of 30 texts, each start with 1 / 4: 7.5 ± 2.4
    assert counts.min() >= 1


def test_where_no_draft_can_be_rejected_no_chain_starts(tiny_model: Make) -> None:
    model = tiny_model(scale=0.3)
    texts = texts_of(model, GREEDY)
    assert rollouts(model, model, texts, GREEDY).empty
    assert rollouts(model, model, texts_of(model, DRAWN), DRAWN).empty
    single = [text((1,))]
    assert rollouts(model, tiny_model(seed=1), single, DRAWN).columns.tolist() == [
        "prompt", "repetition", "start", "depth", "token", "top_prob", "entropy_nats",
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [1, 4])
def test_a_chain_ends_where_the_drafts_context_does(depth: int) -> None:
    """Prompt of 1 and text of 6 in a context of 8: the chain at u feeds places u + 2 … 7."""
    target = scripted(always([0.0, 9.0]), vocabulary=2)
    draft = scripted(always([9.0, 0.0]), vocabulary=2, max_context=8)
    frame = rollouts(target, draft, [text((1,) * 6)], GREEDY, starts_per_text=9, depth=depth)
    assert frame.groupby("start")["depth"].max().to_dict() == {u: min(depth, 6 - u) for u in range(5)}
    assert (frame.groupby("start")["depth"].min() == 1).all()
    assert (frame["token"] == 0).all()


def test_ids_that_only_the_target_has_are_never_fed_and_start_nothing() -> None:
    target = scripted(spread(0.2, 0.2, 0.6), vocabulary=3)
    draft = scripted(spread(0.5, 0.5), vocabulary=2)
    frame = rollouts(target, draft, [text((0, 2, 2, 0, 1))], DRAWN, starts_per_text=9, depth=2)
    assert sorted(frame["start"].unique()) == [0]  # after 2 nothing is drafted; 1 is never rejected after 0
    assert frame["token"].isin([0, 1]).all()


def test_a_text_beyond_the_drafts_context_is_refused(tiny_model: Make) -> None:
    target, draft = tiny_model(scale=0.3), tiny_model(seed=1, max_context=20, name="small")
    with pytest.raises(ValueError, match="small: prompt 4 has 9 tokens and 12 more are asked for, but the model takes"):
        rollouts(target, draft, texts_of(target, DRAWN), DRAWN)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("first_bad", "token"), [(1, 1), (3, 2)], ids=["on the path", "off the path, after a draft of its own"]
)
def test_logits_that_are_no_numbers_are_an_error(first_bad: int, token: int, value: float) -> None:
    broken = scripted(
        lambda _, places: torch.where(places[..., None] >= first_bad, value, torch.zeros(2)), vocabulary=2
    )
    with pytest.raises(NonFiniteLogitsError, match=f"scripted: prompt 0: the logits of token {token} of its text"):
        rollouts(scripted(spread(1.0, 0.0), vocabulary=2), broken, [text((0, 0, 0))], DRAWN, depth=4)


def test_texts_over_a_bucket_of_the_cache_are_followed_from_their_beginnings(tiny_model: Make) -> None:
    """Texts reach beyond 64 places, chains from their first positions stay within them."""
    target, draft = tiny_model(seed=1), tiny_model(seed=2)
    texts = texts_of(target, DRAWN, new=80)
    whole = rollouts(target, draft, texts, DRAWN, starts_per_text=24, batch_size=1)
    few = rollouts(target, draft, [texts[0]], DRAWN, starts_per_text=24, batch_size=1)
    own = whole[whole["prompt"] == 3].reset_index(drop=True)
    assert int(own["start"].min()) < 10 < 60 < int(own["start"].max())
    assert own.equals(few)
