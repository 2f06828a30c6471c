"""specgauge from Python: `runs` (what is public), `keywords` (a configuration from arguments) and `tables`."""
