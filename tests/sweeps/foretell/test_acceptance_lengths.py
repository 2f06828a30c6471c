"""Golden acceptance lengths: the bonus is in them, and what is none is one line."""

from pathlib import Path

import pytest

from specgauge.configs.errors import ConfigError
from specgauge.sweeps.foretell.acceptance_lengths import read_acceptance_lengths


def write(folder: Path, text: str) -> Path:
    path = folder / "lengths.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_number_is_omega_itself(tmp_path: Path) -> None:
    found = read_acceptance_lengths(write(tmp_path, "m: {thinking_on: {3: 3.31, 1: 1.93}}\n"))
    assert (found.name, found.tokens_per_round) == ("m/thinking_on", {1: 1.93, 3: 3.31})
    profile, gammas = found.profile(None)
    assert gammas == [1, 3]
    assert profile.at(gammas).tokens_per_round.tolist() == pytest.approx([1.93, 3.31])
    assert found.profile([3])[1] == [3]


def test_a_table_may_stay_level_and_be_rounded(tmp_path: Path) -> None:
    found = read_acceptance_lengths(write(tmp_path, "m: {1: 1.98, 2: 2.99, 3: 2.99}"))
    assert found.tokens_per_round == {1: 1.98, 2: 2.99, 3: 2.99}


def test_a_table_without_a_model_has_the_files_name(tmp_path: Path) -> None:
    assert read_acceptance_lengths(write(tmp_path, "{1: 1.5}")).name == "lengths.yaml"


def test_a_table_that_is_shorter_than_gamma_says_so(tmp_path: Path) -> None:
    found = read_acceptance_lengths(write(tmp_path, "m: {1: 1.5, 2: 1.8}"))
    with pytest.raises(
        ValueError, match=r"of m are for gamma 1, 2: expected no other in --gamma, got 5; add it to"
    ) as one:
        found.profile([1, 5])
    assert str(one.value).endswith("or leave it out (--gamma 1,2)")


BOMB = "\n".join(
    ["a0: &a0 {x: {1: 1.5}}"]
    + [f"a{i}: &a{i} {{" + ", ".join(f"k{k}: *a{i - 1}" for k in range(20)) + "}" for i in range(1, 6)]
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected acceptance lengths by gamma"),
        ("[1, 2]", "expected acceptance lengths by gamma"),
        ("m: {a: {1: 1.5}, b: {1: 1.6}}", r"expected one of m/a, m/b \(--acceptance-table\), got none"),
        ("m: {0: 1.5}", "expected a gamma from 1 to 1000 as key, got 0"),
        ("m: {one: 1.5}", "expected a gamma from 1 to 1000 as key, got 'one'"),
        ("m: {true: 1.5}", "expected a gamma from 1 to 1000 as key, got true"),
        ("m: {1: 0.9}", "gamma 1: expected tokens a round, the bonus included, from 1 to 2, got 0.9"),
        ("m: {1: 2.1}", "gamma 1: expected tokens a round, the bonus included, from 1 to 2, got 2.1"),
        ("m: {1: .nan}", "gamma 1: expected tokens a round, the bonus included, from 1 to 2, got "),
        (
            "m: {4: 2.5, 2: 2.7, 1: 1.7}",
            "m, gamma 4: expected 2.7 to 4.7 tokens a round, after 2.7 at gamma 2 .*, got 2.5",
        ),
        ("m: {1: high}", "gamma 1: expected tokens a round, the bonus included, from 1 to 2, got 'high'"),
        (
            "m: {1: 1.9, 2: 2.5, 4: 2.1}",
            r"m, gamma 4: expected 2.5 to 4.5 tokens a round, after 2.5 at gamma 2 \(each further draft adds 0 to 1\)",
        ),
        ("m: {1: 1.1, 2: 2.9}", "m, gamma 2: expected 1.1 to 2.1 tokens a round, after 1.1 at gamma 1 "),
        ("m: {1: 1.5", "not valid YAML: "),
        ("m: {1: 1.1, 1: 1.9}", "not valid YAML: the key '1' is given twice"),
        ("m: &a {b: *a}", "expected tables under model and mode, got over 8 levels: m/b/b"),
        (BOMB, "expected at most 10000 tables of acceptance lengths, got more"),
        ("!!python/object:os.x {}", "not valid YAML: "),
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read_acceptance_lengths(write(tmp_path, text))
    assert "\n" not in str(error.value)
