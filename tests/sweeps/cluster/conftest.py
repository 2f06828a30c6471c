from __future__ import annotations

from tests.sweeps.run.conftest import bench as bench
