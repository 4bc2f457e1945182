"""Readings: the figures of all workers' reports at one review."""
