from __future__ import annotations

import pytest

from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.configs.verify import VerifyConfig
from specgauge.model.policies.tuning import MAKERS

KEYS = ", ".join(VerifyConfig.model_fields)
RATE = "a number of at least 0 and at most 1, a list of these, or null (the models decide)"


def test_nothing_is_verified_unless_asked() -> None:
    assert load_config("quickstart", ["verify=null"]).verify is None


def test_an_empty_section_takes_the_defaults() -> None:
    assert load_config("quickstart", ["verify={}"]).verify == VerifyConfig()
    assert VerifyConfig().gamma == "recommended"


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ("{gamma: recommended}", "gamma", "recommended"),
        ("{gamma: 1:3}", "gamma", (1, 2, 3)),
        ("{gamma: [4, 2]}", "gamma", (2, 4)),
        ("{context: 128}", "context", (128,)),
        ("{batch_size: null}", "batch_size", None),
        ("{acceptance: 1}", "acceptance", 1.0),
        ("{gamma: 2, acceptance: [0.9, 0]}", "acceptance", (0.9, 0.0)),
        ("{policies: [renewal, heuristic, renewal]}", "policies", ("heuristic", "renewal")),
        ("{policies: svip}", "policies", ("svip",)),
        ("{policies: null}", "policies", None),
    ],
)
def test_what_may_be_written(written: str, field: str, value: object) -> None:
    config = load_config("quickstart", [f"verify={written}"])
    assert getattr(config.verify, field) == value


def test_every_policy_that_is_tuned_may_be_asked_for() -> None:
    config = load_config("quickstart", [f"verify.policies=[{', '.join(MAKERS.keys() - {'fixed'})}]"])
    assert config.verify is not None
    assert config.verify.policies == tuple(name for name in MAKERS if name in set(config.verify.policies or ()))
    assert len(config.verify.policies or ()) == len(MAKERS) - 1
    assert "\n  policies: [heuristic, gammatune, svip, adaedl, ucb, exp3, goodput, renewal]\n" in config_to_yaml(config)


def test_it_is_written_out() -> None:
    config = load_config("quickstart", ["verify={gamma: [1, 2], acceptance: [0.9, 0.8], context: 256}"])
    assert "\n  acceptance: [0.9, 0.8]\n" in config_to_yaml(config)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{gamma: 9}", "verify.gamma: found 9, allowed: values of grid.gamma, which are 1, 2, 3, 4, 5, 6"),
        ("{context: [128, 77]}", "verify.context: found 77, allowed: values of grid.context, which are 128, 256"),
        ("{batch_size: 2}", "verify.batch_size: found 2, allowed: values of grid.batch_size, which are 1, 4"),
        ("{acceptance: 2}", f"verify.acceptance: found 2, allowed: {RATE}"),
        ("{acceptance: [0.5, -1]}", "verify.acceptance[1]: found -1, allowed: a number of at least 0 and at most 1"),
        (
            "{acceptance: [0.9, 0.8]}",
            "verify.acceptance: found '2 rates', allowed: one rate, or one for each draft of the largest gamma, "
            "which is 6",
        ),
        (
            "{gamma: all}",
            "verify.gamma: found 'all', allowed: recommended, an integer from 1 to 64, a list of these, or a range "
            "such as 1:8 or 1:8:2",
        ),
        ("{policies: [svip, ours]}", "verify.policies[1]: found 'ours', allowed: heuristic | gammatune | svip | adaedl "
         "| ucb | exp3 | goodput | renewal"),
        ("{policies: []}", "verify.policies: found an empty list, allowed: at least one value: heuristic | gammatune | "
         "svip | adaedl | ucb | exp3 | goodput | renewal, a list of these, or null (γ is fixed)"),
        ("{policies: [svip, ucb], acceptance: 0.5}", "verify.policies: found 'svip, ucb', allowed: null where "
         "verify.acceptance is given: policies are tuned on what the models accept"),
        ("{gama: 3}", f"unknown key 'gama' in verify; did you mean 'gamma'? allowed: {KEYS}"),
        ("3", f"verify: found 3, allowed: a mapping with the keys {KEYS}, or null"),
        ("{max_new_tokens: 1}", "verify.max_new_tokens: found 1, allowed: an integer from 2 to 16777216, or null "
         "(workload.max_new_tokens)"),
    ],
)  # fmt: skip
def test_what_may_not(written: str, message: str) -> None:
    with pytest.raises(ValueError, match="--set") as caught:
        load_config("quickstart", [f"verify={written}"])
    assert str(caught.value) == f"--set verify={written}: {message}"
