"""Comparisons: recipes, the worker pool, and the runs of one task under several policies."""
