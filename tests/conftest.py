"""Settings of every test: hypothesis draws the same examples on every machine and never fails for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("specgauge", deadline=None, derandomize=True)
settings.load_profile("specgauge")
