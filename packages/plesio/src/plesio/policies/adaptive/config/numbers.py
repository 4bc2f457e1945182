"""A number that components of the adaptive policy share."""

__all__ = ["RECENT"]

RECENT = 4
"""Values whose median is the recent level of a figure."""
