"""Adaptive policies of real processes whose measured times do not decide whether a test holds."""

__all__ = ["STAYS"]

STAYS = "adaptive,feedback.first_slack=0,feedback.largest_slack=0,system.compress=off,system.balance=off"
"""It reviews and stays with BSP. On a busy machine `adaptive` may change after the fourth step."""
