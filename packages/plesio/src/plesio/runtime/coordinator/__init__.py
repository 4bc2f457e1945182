"""Decides runs: ``handle(event) -> effects``, without clock, socket or tensor."""
