"""Checkpoints: the whole of a run at one moment; a crash at any byte leaves the one before."""
