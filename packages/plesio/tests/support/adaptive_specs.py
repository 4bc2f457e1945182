"""Adaptive policies of real processes whose measured times do not decide whether a test holds."""

__all__ = ["BY_TIME", "STAYS"]

STAYS = "adaptive,largest_slack=0,compress=off,balance=off"
"""It reviews and stays with BSP. On a busy machine `adaptive` may change after the fourth step."""

BY_TIME = "adaptive,price=0,store_price=0,momentum_price=0,caution=0,first_slack=31,warm_up=0,finish=0,guard=off"
"""It goes by the seconds of a step alone."""
