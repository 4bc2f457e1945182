"""Discrete-event models of what is planned, on the kernel of `plesio.sim`."""
