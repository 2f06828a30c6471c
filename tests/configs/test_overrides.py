from __future__ import annotations

from pathlib import Path

from specgauge.configs.loader import load_config
from specgauge.configs.pairs import ModelConfig
from tests.configs.texts import MINIMAL, TWO_PAIRS, write


def test_values_are_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    config = load_config(
        path,
        [
            "grid.batch_size=[1, 2]",
            "grid.gamma=1:4",
            "precision.relative_ci=1e-3",
            "precision.max_seconds=null",
            "sampling=[{name: t1}, {name: t2, temperature: 2}]",
            "sampling[1].top_k=5",
            "limits.run_seconds=90",
            "seed = 7",
        ],
    )
    assert config.grid.batch_size == (1, 2)
    assert config.grid.gamma == (1, 2, 3, 4)
    assert config.precision.relative_ci == 0.001
    assert config.precision.max_seconds is None
    assert [(one.name, one.temperature, one.top_k) for one in config.sampling] == [("t1", 1.0, None), ("t2", 2.0, 5)]
    assert (config.limits.run_seconds, config.seed) == (90.0, 7)


def test_one_field_of_a_model_written_by_its_name_alone(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_PAIRS)
    config = load_config(path, ["pairs[1].target.dtype=bfloat16", "pairs[1].draft=org/tiny"])
    assert (config.pairs[1].target.model, config.pairs[1].target.dtype) == ("org/big", "bfloat16")
    assert config.pairs[1].draft == ModelConfig(model="org/tiny", dtype="auto")


def test_a_key_of_digits_is_no_index(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, TWO_PAIRS), ["pairs[1].draft.quantization.8=x"])
    assert config.pairs[1].draft == ModelConfig(model="org/small", dtype="float16", quantization={"8": "x"})


def test_the_last_of_two_options_holds(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, MINIMAL), ["seed=1", "seed=2"]).seed == 2


def test_an_option_mends_a_faulty_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "grid:\n  gamma: 0\nseed: 1\nseed: 2\n")
    config = load_config(path, ["grid.gamma=3", "seed=5"])
    assert (config.grid.gamma, config.seed) == ((3,), 5)


def test_a_value_may_hold_an_equals_sign(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, TWO_PAIRS), ["pairs[1].target.revision=a=b"])
    assert config.pairs[1].target.revision == "a=b"
