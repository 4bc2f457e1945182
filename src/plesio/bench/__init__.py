"""Comparisons: recipes, the worker crew, and the runs of one task under several policies."""
