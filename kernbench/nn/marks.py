"""What a parameter says of how it is split over ranks."""

from typing import Final

PARTS: Final = "parts_group"
"""Attribute of a parameter: the group whose ranks hold different parts on purpose."""
