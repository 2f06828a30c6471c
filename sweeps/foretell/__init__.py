"""What `specgauge plan` foretells from shapes and data sheets, and calibrations from measured times."""
