"""Adaptive policies of real processes whose measured times do not decide whether a test holds."""

__all__ = ["STAYS"]

STAYS = "adaptive,largest_slack=0,compress=off,balance=off"
"""It reviews and stays with BSP. On a busy machine `adaptive` may change after the fourth step."""
