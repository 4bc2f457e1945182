"""Discrete-event simulation: a kernel with virtual time, shared links and cores, and compiled recurrences."""
