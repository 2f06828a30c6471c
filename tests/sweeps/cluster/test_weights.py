"""What is packed of a configuration's models, and what a node is told instead of their paths. No Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgauge.cli.errors import tell
from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.sweeps.cluster import weights
from specgauge.sweeps.cluster.weights import package_of, packed_config
from tests.sweeps import made

KIB = 1 << 10


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("large", "small"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "sub" / "model.safetensors").write_bytes(b"0" * (KIB - 2))
    return tmp_path


def test_a_model_is_packed_once_and_found_on_the_node(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = made.config(
        pairs=[
            {"name": "a", "target": str(models / "large"), "draft": str(models / "small")},
            {"name": "b", "target": {"model": str(models / "large"), "dtype": "float32"}, "draft": "ngram"},
            {"name": "c", "target": "embedded", "draft": {"layers": 1}},
        ]
    )
    with package_of(config) as folder:
        assert sorted(file.name for file in (folder / "weights").iterdir()) == ["0", "1"]
        (tmp_path / "node.yaml").write_text(config_to_yaml(packed_config(config)))
        monkeypatch.chdir(folder)
        a, b, c = load_config(tmp_path / "node.yaml").pairs
        found = {name: Path(one.model).resolve() for name, one in (("a", a.target), ("b", b.target))}
        assert found == dict.fromkeys(("a", "b"), models / "large")
        assert Path(getattr(a.draft, "model", "")).resolve() == models / "small"
        assert (b.target.dtype, b.draft, c) == ("float32", config.pairs[1].draft, config.pairs[2])


def test_more_than_ray_packs_is_refused_before_anything_is_packed(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two models of a KiB each; a package holds less than its limit."""
    monkeypatch.setattr(weights, "PACKAGE_BYTES", 2 * KIB + 1)
    config = made.config(pairs=[{"name": "a", "target": str(models / "large"), "draft": str(models / "small")}])
    with package_of(config):
        pass
    monkeypatch.setenv("RAY_max_grpc_message_size", str(2 * KIB))
    with pytest.raises(ValueError, match=r"executor.pack_weights: expected less than") as caught, package_of(config):
        pass
    assert tell(caught.value, debug=False) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_not_here_cannot_be_packed() -> None:
    config = made.config(pairs=[{"name": "a", "target": "org/not-here", "draft": "ngram"}])
    with pytest.raises(ValueError, match=r"pack_weights: pair 'a' target 'org/not-here' is not in the hub cache here"):
        packed_config(config)
