"""``python -m specgauge`` is the command ``specgauge``."""

from __future__ import annotations

import sys

from specgauge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
