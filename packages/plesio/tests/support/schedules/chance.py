"""Schedules that chance makes: settings, moves, and of one that fails a shorter one that fails too."""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate

from plesio.policies import parse_policy
from support.schedules.moves import Kind, Move, Setting
from support.schedules.schedule import Schedule

POLICIES = (
    "bsp",
    "bsp,exchange=store",
    "bsp,backup=1",
    "bsp,backup=2",
    "ssp:0",
    "ssp:2",
    "ssp:4,period=3",
    "ssp:3,weight=inverse",
    "ssp:2,update=delta,weight=cap:1",
    "asp",
    "asp,period=2",
    "local_sgd:3",
    "local_sgd:4,delay=2",
    "local_sgd:3,exchange=store",
    "diloco:4,fragments=2,delay=1",
    "diloco:3,exchange=store",
    "diloco:2,exchange=store,quorum=2,weight=tokens",
    "delayed:2",
    "fsdp",
    "post_local_sgd:3,warmup=2",
    "hier:bsp/local_sgd:2",
    "hier:bsp/ssp:2",
    "hier:bsp/asp",
    "switch:bsp/asp@3",
    "switch:bsp/asp@3/bsp@6",
    "switch:bsp/ssp:2@3/local_sgd:2@6",
    "switch:bsp/hier:bsp/ssp:2@3/bsp@6",
    "interruptible:bsp",
    "interruptible:ssp:2",
    "interruptible:diloco:3,exchange=store,quorum=3",
    "diloco:3,exchange=store,quorum=2,grace=20ms",
    "switch:bsp/diloco:2,exchange=store,quorum=2@3/bsp@8",
    "interruptible:switch:bsp/asp@3/bsp@7",
    "interruptible:switch:bsp/hier:bsp/ssp:2@3/hier:bsp/asp@6/bsp@9",
    "adaptive",
)
WEIGHTS: dict[Kind, float] = {
    "act": 30, "say": 22, "bulk": 16, "beat": 4, "hear": 18, "urgent": 6, "cut": 3, "order": 5, "part": 4,
    "spoil": 0.6, "kill": 0.5, "notice": 0.7, "come": 0.7, "save": 0.7,
}  # fmt: skip
KINDS = tuple(WEIGHTS)
CUMULATED = tuple(accumulate(WEIGHTS.values()))


def random_setting(policy: str, rng: random.Random) -> Setting:
    """A small run under this policy."""
    chosen = parse_policy(policy)
    num_workers = rng.choice((1, 2, 2, 3, 3, 4))
    racks = tuple(sorted(rng.choice((0, 0, 1)) for _ in range(num_workers)))
    saves = policy.startswith("interruptible")
    return Setting(
        policy=policy,
        racks=tuple(rack - racks[0] for rack in racks) if chosen.goes_by_racks else (0,) * num_workers,
        num_servers=rng.choice((1, 1, 2)) if chosen.pushes is not None else 1,
        num_samples=rng.choice((6, 8, 12, 20)),
        batch_size=rng.choice((1, 2)),
        num_plans=rng.choice((1, 1, 2)),
        elastic=rng.random() < 0.9,
        save_every=rng.choice((None, 2, 5)) if saves or policy == "adaptive" else None,
    )


def random_moves(setting: Setting, rng: random.Random) -> list[Move]:
    """Moves of its workers, the few that come among them."""
    num_workers = len(setting.racks)
    kinds = rng.choices(KINDS, cum_weights=CUMULATED, k=rng.choice((20, 60, 120)))
    last = num_workers + (1 if rng.random() < 0.3 else 0)
    return [_move(kind, setting, rng, last=last) for kind in kinds]


def _move(kind: Kind, setting: Setting, rng: random.Random, *, last: int) -> Move:
    if kind in ("order", "part"):
        return Move(kind=kind, worker=setting.num_servers - 1)
    worker = int(rng.random() * last)
    return Move(kind=kind, worker=worker, server=int(rng.random() * setting.num_servers) if kind == "bulk" else 0)


def play(setting: Setting, moves: Sequence[Move]) -> Schedule:
    """Play a schedule to its end.

    Raises:
        AssertionError: A law is not kept.
    """
    schedule = Schedule(setting)
    for move in moves:
        schedule.move(move)
    schedule.settle()
    return schedule


def shrunk(moves: Sequence[Move], fails: Callable[[Sequence[Move]], bool]) -> list[Move]:
    """Fewer of these moves that still fail: ever smaller parts are left out, as long as it fails without them."""
    kept, size = list(moves), max(1, len(moves) // 2)
    while True:
        at, shorter = 0, False
        while at < len(kept):
            without = kept[:at] + kept[at + size :]
            if fails(without):
                kept, shorter = without, True
            else:
                at += size
        if size == 1 and not shorter:
            return kept
        size = max(1, size // 2)
