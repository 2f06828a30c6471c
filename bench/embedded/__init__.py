"""The pair that ships with specgauge, and the script that trained it."""
