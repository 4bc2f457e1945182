"""A number that components of the adaptive policy share."""

__all__ = ["RECENT"]

RECENT = 4
"""Newest values of a figure, whose median is its recent level."""
