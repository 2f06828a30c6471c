"""Hardware entries and shapes: every number has a source, every mistake one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specgauge.configs.errors import ConfigError
from specgauge.configs.hardware import HARDWARE, SHAPES, Count, Quantity, load_hardware, load_shape
from tests.configs.texts import write

CALIBRATED = HARDWARE["a100-80gb-sxm"].read_text(encoding="utf-8")
GOOD = """\
name: box
description: a box
memory_bytes: {value: 8e9, source: s}
memory_bandwidth_bytes_per_s: null
link_bandwidth_bytes_per_s: null
multiprocessors: {value: 4, source: s}
peak_flops_per_s:
  float32: {value: 1e12, source: s}
"""


@pytest.mark.parametrize("name", HARDWARE)
def test_every_number_says_where_it_is_from(name: str, tmp_path: Path) -> None:
    entry = load_hardware(name)
    assert entry.name == name
    numbers = [number for _, number in [*entry, *entry.peak_flops_per_s] if isinstance(number, (Quantity, Count))]
    assert all(len(number.source.split()) >= 3 for number in numbers)
    assert entry.memory_bandwidth_bytes_per_s in numbers
    assert entry.peak_flops_per_s.bfloat16 in numbers
    assert load_hardware(write(tmp_path, entry.to_yaml())) == entry


@pytest.mark.parametrize(
    ("name", "bandwidth", "bfloat16", "link", "multiprocessors"),
    [
        ("a100-80gb-sxm", 2.039e12, 312e12, 300e9, 108),
        ("h100-sxm", 3.35e12, 989.5e12, 450e9, 132),
        ("h200-sxm", 4.8e12, 989.5e12, 450e9, 132),
        ("b200-sxm", 7.7e12, 2.25e15, 900e9, 148),
        ("l40", 864e9, 181.05e12, 32e9, 142),
        ("l40s", 864e9, 362.05e12, 32e9, 142),
        ("mi300x", 5.3e12, 1307.4e12, 448e9, 304),
        ("H100-SXM", 3.35e12, 989.5e12, 450e9, 132),
    ],
)
def test_datasheet_numbers(name: str, bandwidth: float, bfloat16: float, link: float, multiprocessors: int) -> None:
    plain = load_hardware(name).plain()
    assert plain["memory_bandwidth_bytes_per_s"] == bandwidth
    assert plain["peak_flops_per_s"]["bfloat16"] == bfloat16
    assert (plain["link_bandwidth_bytes_per_s"], plain["multiprocessors"]) == (link, multiprocessors)


def test_an_entry_of_ones_own(tmp_path: Path) -> None:
    plain = load_hardware(write(tmp_path, GOOD)).plain()
    assert plain == {
        "name": "box",
        "memory_bytes": 8e9,
        "memory_bandwidth_bytes_per_s": None,
        "link_bandwidth_bytes_per_s": None,
        "multiprocessors": 4,
        "peak_flops_per_s": {"float32": 1e12},
    }


@pytest.mark.parametrize(
    ("load", "name", "line"),
    [
        (load_hardware, "H10-sxm", r"^hardware entry: expected a file .* a100.*; did you mean 'h100-sxm'\?$"),
        (load_shape, "llama-3.1-9b", r"^model shape: expected a file .*'llama-3.1-9b'; did you mean 'llama-3.1-8b'\?$"),
        (load_hardware, "", r"^hardware entry: expected a file that exists, or a100.*, got ''$"),
    ],
)
def test_unknown_names_get_the_nearest(load: Callable[[str], object], name: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load(name)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_small_files_of_facts(name: str) -> None:
    config = load_shape(name.upper())
    assert {"model_type", "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"} <= set(config)
    assert len(config) < 25
    assert list(config) == sorted(config)


def test_a_model_folder_or_its_config_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model shape: expected a file that exists, .*/config\.json'"):
        load_shape(tmp_path)
    write(tmp_path, '{"model_type": "llama"}', "config.json")
    assert load_shape(tmp_path) == load_shape(tmp_path / "config.json") == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("load", "text", "line"),
    [
        (load_hardware, GOOD.replace("link_b", "lnk_b"), ":5: unknown key 'lnk_bandwidth_bytes_per_s'; did you mean "),
        (load_hardware, GOOD.replace("8e9, source: s", "8e9"), ":3: missing key 'source' in memory_bytes: "),
        (
            load_hardware,
            GOOD.replace("8e9", "-1"),
            ":3: memory_bytes.value: expected a number of at least 1 and at most 1e+30, got -1",
        ),
        (
            load_hardware,
            GOOD.replace("e: 4", "e: 4.5"),
            ":6: multiprocessors.value: expected an integer from 1 to 1000000, got ",
        ),
        (
            load_hardware,
            CALIBRATED.replace("[1, 3]", "[3]"),
            ":29: calibration.tokens: expected two numbers, the small",
        ),
        (load_hardware, CALIBRATED.replace("rms: 0.077975", "rms: 1e9"), ":38: calibration.draft.same_draft.rms: expe"),
        (load_hardware, CALIBRATED.replace("2039e9", "1e-300"), ":6: memory_bandwidth_bytes_per_s.value: expected a "),
        (load_hardware, "", ":1: expected a mapping with the keys name, description, memory_bytes"),
        (load_shape, "[1]", ": expected the mapping of a transformers config.json, got a list"),
        (load_shape, "{\n  'a': 1}", ":2: not valid JSON: Expecting property name enclosed in double quotes"),
        (load_shape, "", ":1: not valid JSON: Expecting value"),
        (load_shape, "[" * 100_000, ": expected the mapping of a transformers config.json, got one nested too deep"),
        (
            load_shape,
            "9" * 5_000,
            ": expected the mapping of a transformers config.json, got a number of thousands of digits",
        ),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, load: Callable[[Path], object], text: str, line: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}{line}")
