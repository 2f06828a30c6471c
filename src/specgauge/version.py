"""The version, told once: pyproject.toml and the package take it from here."""

__version__ = "0.1.0"
