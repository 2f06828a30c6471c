"""Weights that travel to the nodes, as a package of Ray's runtime environment.

    sent = packed_config(config)                  # the configuration with the models as they are called on a node
    with package_of(config) as folder: …          # the working directory of every task: `weights/0`, `weights/1`, …

What is packed is a model's directory, or what the local hub cache has of it; the embedded pair is part of specgauge. A
package is kept by the head of the cluster, and fetched by each node once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specgauge.configs.fields import EMBEDDED
from specgauge.configs.pairs import ModelConfig
from specgauge.sweeps.model_sizes import model_folder
from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.run.progress import size_text

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config
    from specgauge.sweeps.model_sizes import Role

WEIGHTS = "weights"
"""The folder of a package."""
PACKAGE_BYTES = 512 << 20
"""What Ray takes in a package, unless its variable says otherwise: the largest message between its processes."""
_LARGEST = "RAY_max_grpc_message_size"


def packed_config(config: Config) -> Config:
    """The configuration with the path within the package in the place of every model that is packed.

    Raises:
        ValueError: a model is not here, so that it cannot be packed.
    """
    names = _names(config)

    def moved(pair: PairConfig, role: Role) -> object:
        spec = getattr(pair, role)
        name = names.get((pair.name, role))
        return spec if name is None else spec.model_copy(update={"model": f"./{WEIGHTS}/{name[1]}"})

    pairs = [
        pair.model_copy(update={"target": moved(pair, "target"), "draft": moved(pair, "draft")})
        for pair in config.pairs
    ]
    return config.model_copy(update={"pairs": tuple(pairs)})


@contextmanager
def package_of(config: Config) -> Iterator[Path]:
    """The folder that Ray packs, with a link to every model.

    Raises:
        ValueError: a model is not here, or all together are larger than Ray's packages.
    """
    folders = dict(_names(config).values())
    limit = int(os.environ.get(_LARGEST, PACKAGE_BYTES))
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    if size >= limit:
        raise ValueError(
            f"executor.pack_weights: expected less than {size_text(limit)}, which is what Ray packs, got "
            f"{size_text(size)} of weights; put them where every node finds them (a shared path, or its hub cache), or "
            f"raise {_LARGEST} on every node and here"
        )
    with TemporaryDirectory(prefix="specgauge-") as name:
        (Path(name) / WEIGHTS).mkdir()
        for folder, number in folders.items():
            (Path(name) / WEIGHTS / number).symlink_to(folder.resolve(), target_is_directory=True)
        yield Path(name)


def _names(config: Config) -> dict[tuple[str, Role], tuple[Path, str]]:
    """The folder of every model that is packed and what it is called there, by pair and role."""
    found: dict[tuple[str, Role], tuple[Path, str]] = {}
    numbers: dict[Path, str] = {}
    roles: tuple[Role, ...] = ("target", "draft")
    for pair in planned_pairs(config):
        for role in roles:
            spec = getattr(pair, role)
            if not isinstance(spec, ModelConfig) or spec.model == EMBEDDED:
                continue
            folder = model_folder(spec, role)
            if folder is None:
                raise ValueError(
                    f"executor.pack_weights: pair {pair.name!r} {role} {spec.model!r} is not in the hub cache here, so "
                    f"it cannot be packed; download it here first, such as with `hf download {spec.model}`"
                )
            found[pair.name, role] = folder, numbers.setdefault(folder, str(len(numbers)))
    return found
