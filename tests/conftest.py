"""Settings of every test: hypothesis draws the same examples on every machine and never fails for being slow.

What the imports left behind is frozen once all tests are collected, so that the collections of garbage during the tests
(measuring asks for one after each batch size) look at what tests made and not at a million objects of the libraries.
Nobody waits for the disk: what a process wrote outlives its death, and no test cuts the power.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("specgauge", deadline=None, derandomize=True)
settings.load_profile("specgauge")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
