"""Adaptive policies of real processes whose measured times do not decide whether a test holds."""

STAYS = "adaptive,price=9,warm_up=999,compress=off,balance=off"
"""It reviews and stays with BSP. On a busy machine `adaptive` may change after the fourth step."""

BY_TIME = "adaptive,price=0,store_price=0,momentum_price=0,caution=0,trial=1,warm_up=0,finish=0,guard=off"
"""It goes by the seconds of a step alone."""
