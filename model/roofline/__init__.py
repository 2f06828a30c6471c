"""The roofline: bytes and FLOPs of a step from shapes, least times, and efficiencies fitted to measured steps."""
