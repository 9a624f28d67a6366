"""The version, which every room may ask for without asking for the whole package."""

__version__ = "0.3.0"
