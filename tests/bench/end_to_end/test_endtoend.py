"""Every arm over the same prompts: what is recorded adds up, greedy texts agree, the one-pass estimate is met."""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import count
from typing import Any

import pytest
import torch

from specgauge.bench.cache.cache import RowLayer, forward
from specgauge.bench.decoding import drafters
from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.decoding.verification import Verifier
from specgauge.bench.device import free_bytes
from specgauge.bench.end_to_end import arm_runs
from specgauge.bench.end_to_end import end_to_end as endtoend
from specgauge.bench.end_to_end.arm_runs import (
    ArmRun,
    Request,
    Round,
    cache_bytes,
    run_of_decoded,
    weight_bytes,
)
from specgauge.bench.end_to_end.end_to_end import EndToEnd, shuffled
from specgauge.bench.end_to_end.host_costs import HostCosts
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.bench.timing import neighbours
from specgauge.configs.pairs import NgramConfig
from specgauge.model.arms import adaptive_arm, end_to_end_arms
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy
from specgauge.model.policies.stopping import RenewalCall, SvipPolicy
from specgauge.model.sampling import SamplingSettings
from specgauge.model.stats.disturbance import Disturbance
from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.schema import DecodedKey, RequestRow, RoundRow
from tests.bench.conftest import FakeClock, FakeDevice
from tests.bench.decoded import DRAWN, FILTERED, GREEDY, Make, decode

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3]]
NUMBERS = [4, 5, 6]
ARMS = end_to_end_arms([1, 3])


@pytest.fixture
def pair(tiny_model: Make) -> LoadedPair:
    return LoadedPair(
        name="tiny",
        target=tiny_model(seed=1, scale=0.3, name="target"),
        draft=tiny_model(seed=1, scale=0.3, layers=1, name="draft"),
    )


def run_all(
    pair: LoadedPair, settings: SamplingSettings = GREEDY, arms: Sequence[str] = ARMS, *, new: int = 9, **options: Any
) -> dict[str, ArmRun]:
    bench = EndToEnd(pair, settings, max_new_tokens=new, seed=0, **options)
    return bench.run(arms, PROMPTS, prompt_numbers=NUMBERS, repetition=0)


def _run(pair: LoadedPair, settings: SamplingSettings, arm: str) -> ArmRun:
    return run_all(pair, settings, [arm])[arm]


def texts(run: ArmRun) -> list[tuple[int, ...]]:
    return [request.tokens for request in run.requests]


def test_what_is_recorded_are_the_columns_that_are_kept() -> None:
    for record, row_type in ((Request, RequestRow), (Round, RoundRow)):
        own = {field.name for field in fields(record)}
        assert {*columns(DecodedKey), "block", *own} == set(columns(row_type))


def slow_down(
    monkeypatch: pytest.MonkeyPatch, device: FakeDevice, owner: Any, name: str, seconds: Callable[..., float]
) -> None:
    """The function of that name takes so many seconds, by its arguments."""
    real = getattr(owner, name)

    def slowly(*arguments: Any) -> Any:
        device.now_s += seconds(*arguments)
        return real(*arguments)

    monkeypatch.setattr(owner, name, slowly)


def against_plain(found: dict[str, ArmRun]) -> dict[str, set[str | None]]:
    return {arm: {request.against_plain for request in run.requests} for arm, run in found.items()}


def test_greedy_texts_are_compared_with_the_plain_loops(pair: LoadedPair) -> None:
    found = run_all(pair)
    ours = {arm: {"same"} for arm in ("loop", "generate", "speculate:1", "speculate:3")}
    assert against_plain(found) == ours | {"plain": {None}}
    assert {request.leaves_plain_at for run in found.values() for request in run.requests} == {None}
    assert texts(found["generate"]) == texts(found["plain"])
    for other in (run_all(pair, DRAWN), run_all(pair, forced_rates=0.5)):
        assert set().union(*against_plain(other).values()) == {None}


def test_a_greedy_text_that_is_not_the_plain_loops_says_where_it_leaves(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Verifier.accept

    def shifted(self: Verifier, logits: torch.Tensor, *rest: Any) -> Any:
        return accept(self, logits.roll(1, dims=-1), *rest)

    monkeypatch.setattr(Verifier, "accept", shifted)
    found = run_all(pair)
    assert against_plain(found)["speculate:3"] == {"differs"}
    for request, tokens in zip(found["speculate:3"].requests, texts(found["plain"]), strict=True):
        at = request.leaves_plain_at
        assert at == 1, "the first token is drawn after the prefill"
        assert request.tokens[:at] == tokens[:at]
        assert request.tokens[at] != tokens[at]
        assert request.leaves_plain_margin is not None
        assert request.leaves_plain_margin > 0


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_signals_at_a_fixed_gamma_are_those_of_the_tested_drafts(pair: LoadedPair, settings: SamplingSettings) -> None:
    kept = _run(pair, settings, "speculate:3").rounds
    drafter = ModelDrafter(pair.draft_model, settings, signals=True)
    looking = decode(pair.target, drafter, settings, PROMPTS, gamma=3, new=9, numbers=NUMBERS)
    assert {one.drafted - len(one.top_probs) for one in kept} > {0}, "some end with a rejection, some do not"
    for one, row in zip(kept, looking.rows, strict=True):
        tested = min(row.accepted + 1, row.drafted)
        assert one.top_probs == pytest.approx(row.top_probs[:tested], rel=1e-5)
        assert one.entropies_nats == pytest.approx(row.entropies_nats[:tested], rel=1e-5)


def test_every_block_has_every_arm_in_its_own_order() -> None:
    orders = [shuffled(ARMS, seed=3, block=block) for block in range(6)]
    assert all(sorted(order) == sorted(ARMS) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert orders[2] == shuffled(ARMS, seed=3, block=2)


@pytest.mark.parametrize("arm", ARMS)
def test_what_is_recorded_adds_up(pair: LoadedPair, arm: str) -> None:
    found = _run(pair, GREEDY, arm)
    assert [request.row for request in found.requests] == [0, 1, 2]
    assert [request.prompt for request in found.requests] == [4, 5, 6]
    if arm == "generate":
        assert found.rounds == ()
        assert all(request.rounds is None and request.seconds is None for request in found.requests)
        return
    emitted, rounds = Counter[int](), Counter[int]()
    for one in found.rounds:
        emitted[one.row] += one.emitted
        rounds[one.row] += 1
        assert one.context == 4 + one.position - 1
    for request in found.requests:
        assert len(request.tokens) == 1 + emitted[request.row]
        assert request.rounds == rounds[request.row]
        assert request.seconds is not None
        assert request.prefill_s < request.seconds <= request.prefill_s + request.decode_s + 1e-9
    by_round = {one.round: one.t_round_s for one in found.rounds}
    assert sum(by_round.values()) == pytest.approx(found.requests[0].decode_s, rel=1e-9)


def test_interleaved_arms_write_what_they_write_alone(pair: LoadedPair) -> None:
    for settings in (GREEDY, DRAWN, FILTERED):
        together = run_all(pair, settings)
        assert list(together) == list(ARMS)
        for arm in ARMS:
            alone = _run(pair, settings, arm)
            assert texts(together[arm]) == texts(alone)
            rounds = [[(one.row, one.accepted, one.emitted) for one in run.rounds] for run in (together[arm], alone)]
            assert rounds[0] == rounds[1]


def test_time_of_other_arms_is_not_a_round_s(pair: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accept–reject test takes 2 s and nothing else any time: so long is every round, whoever ran in between."""
    device = FakeDevice()
    slow_down(monkeypatch, device, Verifier, "accept", lambda *_: 2.0)
    found = run_all(pair, clock=FakeClock(device))
    seconds = {(arm, one.t_round_s) for arm, run in found.items() for one in run.rounds}
    assert seconds == {("plain", 0.0), ("loop", 2.0), ("speculate:1", 2.0), ("speculate:3", 2.0)}
    rounds = {one.round for one in found["speculate:3"].rounds}
    assert found["speculate:3"].requests[0].decode_s == 2.0 * len(rounds)


def test_arms_whose_caches_are_too_much_together_run_one_after_another(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[int] = []
    new_cache = LoadedModel.new_cache

    def counted(model: LoadedModel, **sizes: int) -> Any:
        found = new_cache(model, **sizes)
        caches.append(1)
        weakref.finalize(found, caches.pop)
        if len(caches) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(LoadedModel, "new_cache", counted)
    bench = EndToEnd(pair, GREEDY, max_new_tokens=9, seed=0)
    assert bench.interleaves
    for _ in range(2):
        found = bench.run(ARMS, PROMPTS, prompt_numbers=NUMBERS, repetition=0)
        assert not bench.interleaves
        assert texts(found["speculate:3"]) == texts(found["plain"])
    monkeypatch.setattr(LoadedModel, "new_cache", lambda *_, **__: 1 / 0)
    bench = EndToEnd(pair, GREEDY, max_new_tokens=9, seed=0)
    with pytest.raises(ZeroDivisionError):
        bench.run(ARMS, PROMPTS, prompt_numbers=NUMBERS, repetition=0)
    assert bench.interleaves


def test_texts_say_what_to_expect_of_every_gamma(pair: LoadedPair) -> None:
    """Greedy texts are the same whatever γ wrote them, and so is what each γ should take; its own is what it took.

    Baselines are not teacher-forced.
    """
    bench = EndToEnd(pair, GREEDY, max_new_tokens=20, seed=0)
    found = bench.run(ARMS, PROMPTS, prompt_numbers=NUMBERS, repetition=0, window=4)
    for arm in ("plain", "loop"):
        assert {(one.expected_rounds, one.expected_starts) for one in found[arm].requests} == {(None, None)}
    for row in range(3):
        one, three = (found[f"speculate:{gamma}"].requests[row] for gamma in (1, 3))
        assert one.expected_starts == three.expected_starts
        assert one.expected_committed == three.expected_committed
    for place, gamma in enumerate((1, 3)):
        run = found[f"speculate:{gamma}"]
        for request in run.requests:
            own = [one for one in run.rounds if one.row == request.row and one.position - 1 + 4 <= 19]
            assert request.expected_rounds == pytest.approx(request.rounds, abs=1e-9)
            assert request.expected_starts is not None
            assert request.expected_committed is not None
            assert request.expected_starts[place] == pytest.approx(len(own), abs=1e-9)
            assert request.expected_committed[place] == pytest.approx(sum(one.emitted for one in own), abs=1e-9)


def test_forced_acceptance_is_said_to_lose_the_distribution(pair: LoadedPair) -> None:
    found = run_all(pair, GREEDY, ["speculate:3"], forced_rates=1.0)["speculate:3"]
    assert [one.accepted for one in found.rounds if one.round < 2] == [3] * 6
    for request in found.requests:
        assert not request.lossless
        assert request.why_not_lossless == "acceptance is forced by coin at given rates"
        assert request.expected_rounds is None


def test_a_text_of_one_token_has_no_round(tiny_model: Make) -> None:
    pair = LoadedPair(name="tiny", target=tiny_model(seed=1), draft=tiny_model(seed=2))
    first = texts(_run(pair, GREEDY, "plain"))[0][0]
    ending = LoadedPair(name="tiny", target=tiny_model(seed=1, eos=(first,)), draft=tiny_model(seed=2))
    for arm in ("plain", "loop", "speculate:3"):
        request = _run(ending, GREEDY, arm).requests[0]
        assert (request.tokens, request.rounds, request.finish_reason) == ((first,), 0, "eos")
        assert request.seconds == request.prefill_s


def test_warming_up_leaves_no_trace(pair: LoadedPair) -> None:
    bench = EndToEnd(pair, DRAWN, max_new_tokens=9, seed=0)
    for arm in ARMS:
        bench.warm_up(arm, PROMPTS)
    after = bench.run(["speculate:3"], PROMPTS, prompt_numbers=NUMBERS, repetition=0)["speculate:3"]
    assert texts(after) == texts(_run(pair, DRAWN, "speculate:3"))


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (HeuristicPolicy(start=2, cap=3), {1, 2}),
        (SvipPolicy(threshold=1.4, cap=3), {1, 2, 3}),
        (FixedPolicy(gamma=0), {0}),
    ],
)
def test_an_adaptive_arm_writes_the_same_greedy_text_and_says_what_it_drafted(
    pair: LoadedPair, policy: GammaPolicy, asked: set[int]
) -> None:
    bench = EndToEnd(pair, GREEDY, max_new_tokens=20, seed=0)
    arm = adaptive_arm("any")
    bench.warm_up(arm, PROMPTS, gamma_max=3)
    runs = bench.run([arm, "plain"], PROMPTS, prompt_numbers=NUMBERS, repetition=0, policies={arm: policy})
    found, plain = runs[arm], runs["plain"]
    assert texts(found) == texts(plain)
    assert all(one.arm == arm and one.gamma is None and one.expected_rounds is None for one in found.requests)
    assert all(one.lossless for one in found.requests)
    assert {one.gamma_asked for one in found.rounds if one.gamma_limit == "asked"} == asked
    assert {one.t_accept_s is None for one in found.rounds} == {asked == {0}}
    assert all(one.drafted == one.gamma <= one.gamma_asked <= 3 for one in found.rounds)


def test_warming_up_meets_every_gamma_with_a_check_after_every_draft(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[ArmRun] = []
    monkeypatch.setattr(endtoend, "run_of_decoded", lambda arm, decoded: runs.append(run_of_decoded(arm, decoded)))
    EndToEnd(pair, GREEDY, max_new_tokens=40, seed=0).warm_up("adaptive:any", PROMPTS[:1], gamma_max=3)
    (warm,) = runs
    assert {one.gamma_asked for one in warm.rounds if one.gamma_limit == "asked"} == {1, 2, 3}
    assert all(len(one.top_probs) == one.drafted - 1 for one in warm.rounds if one.gamma_limit == "asked")


def test_a_machine_that_drifts_makes_no_check_dearer(pair: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain takes as many seconds as there were chains before it; two checks take 3 s each beside that."""
    device, chains = FakeDevice(), count()
    slow_down(monkeypatch, device, drafters, "confidence", lambda *_: 3.0)
    slow_down(monkeypatch, device, ModelDrafter, "propose", lambda *_: next(chains))
    bench = EndToEnd(pair, GREEDY, max_new_tokens=9, seed=0, clock=FakeClock(device))
    assert bench.host_costs(PROMPTS, gamma=3).t_early_stop_check_s == pytest.approx(3.0, rel=1e-12)


def test_what_the_host_adds(pair: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals take 3 s to read, where lookups draft a question to the policy takes 1 s.

    Accept–reject tests take a second a place, of which the middle γ of a round, 2 of 3 and 1 of 1, has one more.
    """
    device = FakeDevice()
    slow_down(monkeypatch, device, drafters, "confidence", lambda *_: 3.0)
    slow_down(monkeypatch, device, Verifier, "accept", lambda *arguments: arguments[1].shape[1])
    lookups = LoadedPair(name="tiny", target=pair.target, draft=None, ngram=NgramConfig())
    for drafting, check_s in ((pair, 3.0), (lookups, 1.0)):
        if drafting is lookups:
            slow_down(monkeypatch, device, RenewalCall, "goes_on", lambda *_: 1.0)
        bench = EndToEnd(drafting, GREEDY, max_new_tokens=9, seed=0, clock=FakeClock(device))
        assert bench.host_costs(PROMPTS, gamma=3) == HostCosts(t_overhead_s=3.0, t_early_stop_check_s=check_s)
        assert bench.host_costs(PROMPTS, gamma=1) == HostCosts(t_overhead_s=2.0, t_early_stop_check_s=0.0)


def test_bytes_are_those_of_a_cache_that_was_written(tiny_model: Make) -> None:
    model = tiny_model()
    cache = model.new_cache(batch_size=3, tokens=100)
    with torch.inference_mode():
        forward(model.model, cache, torch.ones(3, 2, dtype=torch.long))
    layers = [layer for layer in cache.layers if isinstance(layer, RowLayer)]
    written = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    wanted = sum(tensor.numel() * tensor.element_size() for tensor in written if tensor is not None)
    assert wanted > 0
    assert cache_bytes(model, batch_size=3, tokens=100) == wanted


@pytest.mark.parametrize(
    ("free", "spare", "fits"),
    [(None, None, True), (2.0, None, True), (1.99, None, False), (None, 0, True), (None, -1, False)],
)
def test_caches_may_take_half_of_what_is_free_and_with_the_weights_what_the_run_may(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch, free: float | None, spare: int | None, fits: bool
) -> None:
    """`generate` runs alone; arms that do not fit run one after another."""
    needed = (len(ARMS) - 1) * sum(cache_bytes(model, batch_size=3, tokens=13) or 0 for model in pair.models)
    monkeypatch.setattr(arm_runs, "free_bytes", lambda device: None if free is None else int(free * needed))
    limit = None if spare is None else weight_bytes(pair) + needed + spare
    bench = EndToEnd(pair, GREEDY, max_new_tokens=9, seed=0, memory=limit)
    found = bench.run(ARMS, PROMPTS, prompt_numbers=NUMBERS, repetition=0)
    assert bench.interleaves is fits
    assert texts(found["speculate:3"]) == texts(found["plain"])


def test_weights_count_once_where_both_models_share_them(tiny_model: Make) -> None:
    target, draft = tiny_model(), tiny_model(layers=1)
    own = [
        sum(weight.numel() * weight.element_size() for weight in model.model.parameters()) for model in (target, draft)
    ]
    assert weight_bytes(LoadedPair(name="tiny", target=target, draft=draft)) == sum(own)
    assert weight_bytes(LoadedPair(name="tiny", target=target, draft=target)) == own[0]


def test_this_host_has_memory() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is None or free > 1 << 20
    assert free_bytes(torch.device("meta")) is None


@pytest.mark.parametrize(
    ("told", "spare_s", "expected"),
    [
        ((0,), 9.0, (0, 0, 0.0)),
        ((1, 0), 9.0, (0, 1, 2.0)),
        ((1, 1), 9.0, (1, 1, 2.0)),
        ((1,), 1.5, (1, 0, 0.0)),
    ],
    ids=["calm", "calm the second time", "disturbed twice", "no seconds"],
)
def test_a_disturbed_batch_is_decoded_again(
    pair: LoadedPair,
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[int, ...],
    spare_s: float,
    expected: tuple[int, int, float],
) -> None:
    """Each takes 2 s, as it is told; the texts are the same whenever they are decoded."""
    counts = iter(told)

    def watched(work: Callable[[], Any], **_: Any) -> tuple[Any, Disturbance]:
        return work(), Disturbance(wall_s=2.0, processor_s=3.0, steal_s=0.5, disturbed=next(counts))

    plainly = texts(_run(pair, DRAWN, "speculate:3"))
    monkeypatch.setattr(neighbours, "watched_for_neighbours", watched)
    bench = EndToEnd(pair, DRAWN, max_new_tokens=9, seed=0)
    found = bench.run(["plain", "speculate:3"], PROMPTS, prompt_numbers=NUMBERS, repetition=0, spare_s=spare_s)
    disturbed, retaken, retaken_s = expected
    for request in (request for run in found.values() for request in run.requests):
        figures = {one.name: getattr(request, one.name) for one in fields(Disturbance)}
        assert Disturbance(**figures) == Disturbance(
            wall_s=2.0, processor_s=3.0, steal_s=0.5, disturbed=disturbed, retaken=retaken, retaken_s=retaken_s
        )
    assert texts(found["speculate:3"]) == plainly
    assert next(counts, None) is None


def test_a_machine_that_is_busy_throughout_decodes_two_batches_again(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        neighbours, "watched_for_neighbours", lambda work, **_: (work(), Disturbance(wall_s=1.0, disturbed=1))
    )
    bench = EndToEnd(pair, GREEDY, max_new_tokens=4, seed=0)
    runs = [bench.run(["plain"], PROMPTS, prompt_numbers=NUMBERS, repetition=number)["plain"] for number in range(4)]
    assert [[request.retaken for request in run.requests] for run in runs] == [[1] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert {request.disturbed for run in runs for request in run.requests} == {1}
