"""Event logs of adaptive runs that are made up, so that every figure of their explanation can be worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

from plesio.policies import Action, Adaptive, EventLog, Reviewed, Steer
from plesio.policies.adaptive.compared import ComparedSetting, TrialEnd
from plesio.policies.replay import LogEntry

NUM_WORKERS = 4
EVEN = [0.010] * NUM_WORKERS


def reviewed(
    clock: int,
    compute_s: Sequence[float],
    blocked_s: Sequence[float],
    *,
    samples: Sequence[int] = (30,) * NUM_WORKERS,
    **values: Any,
) -> list[Reviewed]:
    """Each worker's review: all of its steps computed as long, and were blocked as ``blocked_s`` says by step."""
    return [
        Reviewed(
            worker=worker,
            clock=clock,
            samples=(samples[worker],) * len(blocked_s),
            compute_s=(compute_s[worker],) * len(blocked_s),
            blocked_s=tuple(blocked_s),
            **values,
        )
        for worker in range(NUM_WORKERS)
    ]


def steer(clock: int, policy: str, *, before: str, inputs: dict[str, float] | None = None, **values: Any) -> Steer:
    values = {"next_review": clock + 14, "next_clock": clock + 16, "reason": "reasons", **values}
    return Steer(clock=clock, before=before, policy=policy, inputs=tuple((inputs or {}).items()), **values)


def compared(step_s: dict[str, float]) -> dict[str, float]:
    """Name the figures of settings by the seconds of a step: one of bsp is worth 1, and of all others 0.8 to 1."""
    figures: dict[str, float] = {}
    for spec, one_s in step_s.items():
        low = 1.0 if spec == "bsp" else 0.8
        score = math.log(low * step_s["bsp"] / one_s)
        figures |= ComparedSetting(spec=spec, step_s=one_s, worth_low=low, worth_high=1.0, score=score).inputs
    return figures


BSP_ALONE = compared({"bsp": 0.040})
LOOSER = compared({"bsp": 0.040, "local_sgd:2": 0.020})


def log_of(*rounds: tuple[list[Reviewed], Steer | None]) -> EventLog:
    entries = []
    for reviews, answer in rounds:
        for review in reviews:
            actions: tuple[Action, ...] = (answer,) if review is reviews[-1] and answer is not None else ()
            entries.append(LogEntry(event=review, actions=actions))
    return EventLog(policy=Adaptive(), entries=tuple(entries))


NETWORK = log_of(
    (reviewed(3, EVEN, [0.030] * 3, loss=1.0), steer(5, "bsp", before="bsp", inputs=BSP_ALONE)),
    (
        reviewed(19, EVEN, [0.030] * 16, loss=1.0),
        steer(
            21,
            "local_sgd:2",
            before="bsp",
            keep=True,
            inputs=LOOSER,
            reason="a step of local_sgd:2 takes 20 ms where one of bsp takes 40 ms, and is worth 0.80 to 1.00 of it",
        ),
    ),
    (
        reviewed(36, EVEN, [0.0, 0.020] * 7),
        steer(
            38,
            "local_sgd:2",
            before="local_sgd:2",
            inputs=compared({"bsp": 0.042, "local_sgd:2": 0.020})
            | TrialEnd(excess=0.25, most=0.5, worth_low=0.85, worth_high=0.95).inputs,
            reason="local_sgd:2 has the most progress per second",
        ),
    ),
)
"""Forty steps of 40 ms under bsp, half of that under local_sgd:2, whose trial ends well."""

SLOW_SHARES = (0.3, 0.3, 0.3, 0.1)
SLOW_BSP = compared({"bsp": 0.014})
SLOW = log_of(
    (
        reviewed(19, [0.010, 0.010, 0.010, 0.030], [0.002] * 19),
        steer(21, "bsp", before="bsp", shares=SLOW_SHARES, inputs=SLOW_BSP),
    ),
    (
        reviewed(35, [0.012] * 4, [0.002] * 14, samples=(36, 36, 36, 12)),
        steer(37, "bsp", before="bsp", shares=SLOW_SHARES, inputs=SLOW_BSP),
    ),
)
"""Worker 3 takes three times as long, and so a third of the samples: 12 ms for all, and 2 ms to exchange."""

DIVERGED = log_of(
    (reviewed(4, EVEN, [0.030] * 4), steer(6, "local_sgd:2", before="bsp", keep=True, inputs=LOOSER)),
    (
        reviewed(20, EVEN, [0.0, 0.020] * 7),
        steer(
            22,
            "bsp",
            before="local_sgd:2",
            restore=True,
            reason="the loss is 9, 12 times its noise above 1: back to bsp and to the last good state",
        ),
    ),
)
