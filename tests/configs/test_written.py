from __future__ import annotations

from pathlib import Path

import pytest

from specgauge.configs.loader import load_config
from specgauge.configs.pairs import ModelConfig
from tests.configs.texts import MINIMAL, MODEL_KEYS, TOP_KEYS, error_of, write

TWO_PAIRS = MINIMAL + "  - {name: other, target: org/big, draft: {model: org/small, dtype: float16}}\n"


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
            "seed = 7",
        ],
    )
    assert config.grid.batch_size == (1, 2)
    assert config.grid.gamma == (1, 2, 3, 4)
    assert config.precision.relative_ci == 0.001
    assert config.precision.max_seconds is None
    assert [(one.name, one.temperature, one.top_k) for one in config.sampling] == [("t1", 1.0, None), ("t2", 2.0, 5)]
    assert config.seed == 7


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


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("grid.gamma", "--set grid.gamma: found 'grid.gamma', allowed: KEY=VALUE, such as grid.gamma=1:6"),
        ("=4", "--set =4: found '=4', allowed: KEY=VALUE, such as grid.gamma=1:6"),
        ("", "--set : found '', allowed: KEY=VALUE, such as grid.gamma=1:6"),
        ("grid..gamma=4", "--set grid..gamma=4: found 'grid..gamma=4', allowed: KEY=VALUE, such as grid.gamma=1:6"),
        ("pairs[x]=4", "--set pairs[x]=4: found 'pairs[x]=4', allowed: KEY=VALUE, such as grid.gamma=1:6"),
        (
            "grid.gama=4",
            "--set grid.gama=4: unknown key 'gama' in grid; did you mean 'gamma'? allowed:"
            " batch_size, context, gamma, gamma_search, include, exclude",
        ),
        (
            "gird.gamma=4",
            f"--set gird.gamma=4: unknown key 'gird' at the top level; did you mean 'grid'? allowed: {TOP_KEYS}",
        ),
        ("grid.gamma=0", "--set grid.gamma=0: grid.gamma: found 0, allowed: an integer from 1 to 64,"
                         " a list of these, or a range such as 1:8 or 1:8:2, or {max: 16, search: adaptive}"),
        (
            "grid.gamma=[1, 0]",
            "--set grid.gamma=[1, 0]: grid.gamma[1]: found 0, allowed: an integer from 1 to 64",
        ),
        ("pairs[2].name=z", "--set pairs[2].name=z: found pairs[2], allowed: [0] to [1]"),
        ("pairs.name=z", "--set pairs.name=z: pairs is a list; name an entry of it, such as pairs[0].name"),
        ("name[0]=z", "--set name[0]=z: name is no list, so it has no entry [0]"),
        ("name.x=z", "--set name.x=z: name is 'x', so it has no key 'x'"),
        (
            "pairs[0].target.dtyp=float32",
            "--set pairs[0].target.dtyp=float32: unknown key 'dtyp' in pairs[0].target; did you mean 'dtype'?"
            f" allowed: {MODEL_KEYS}",
        ),
        (
            "grid={gamma: 1, gamma: 2}",
            "--set grid={gamma: 1, gamma: 2}: key 'gamma' in grid is given twice, first at line 1; remove one of them",
        ),
        (
            "grid.gamma=[1",
            "--set grid.gamma=[1: not valid YAML: while parsing a flow sequence, expected ',' or ']',"
            " but got '<stream end>'",
        ),
        (
            "seed=\n",
            "--set seed=: seed: found nothing, allowed: an integer from 0 to 9223372036854775807",
        ),
    ],
)  # fmt: skip
def test_a_bad_option_gives_exactly_one_line(option: str, line: str, tmp_path: Path) -> None:
    assert error_of(write(tmp_path, TWO_PAIRS), option) == line


def test_the_file_comes_before_the_options(tmp_path: Path) -> None:
    line = error_of(write(tmp_path, MINIMAL + "sed: 1\n"), "grid.gama=4")
    assert line.startswith("file.yaml:4: unknown key 'sed'")
    assert line.endswith("(and 1 more fault)")


def test_indices_of_an_empty_list(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "sampling: []\n")
    assert error_of(path, "sampling[0].name=a") == "--set sampling[0].name=a: found sampling[0], allowed: none"
