"""Whether a wheel holds every tracked file of the product, under ``specgauge/``, and nothing else.

python .ci/check_wheel.py dist/specgauge-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "configs", "model", "reports", "sweeps")
MUST_HAVE = (
    "specgauge/py.typed",
    "specgauge/configs/quickstart.yaml",
    "specgauge/bench/embedded/target/model.safetensors",
    "specgauge/bench/embedded/draft/model.safetensors",
    "specgauge/bench/embedded/prompts.jsonl",
)


def expected_names() -> set[str]:
    """Where each tracked file of the product belongs in a wheel."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name]
    folders = {f"specgauge/{name}" for name in names if name.partition("/")[0] in FOLDERS}
    front = {name.removeprefix("src/") for name in names if name.startswith("src/specgauge/")}
    return folders | (front - {f"specgauge/{folder}" for folder in FOLDERS})  # the links themselves become folders


def faults(wheel: Path) -> list[str]:
    """What the wheel lacks and what it has too much of."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = expected_names() | set(MUST_HAVE)
    lacking = [f"lacks {name}" for name in sorted(expected - names)]
    return lacking + [f"has {name}, which is not tracked" for name in sorted(names - expected)]


def main() -> int:
    """Check the wheel named on the command line; 1 where it is wrong."""
    found = faults(Path(sys.argv[1]))
    for fault in found:
        print(f"{sys.argv[1]}: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
