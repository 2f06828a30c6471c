"""From a run directory to predictions, validation and warnings; no torch."""
