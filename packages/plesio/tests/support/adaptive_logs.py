"""Event logs of adaptive runs that are made up, so that every figure of their explanation can be worked out by hand."""

from collections.abc import Sequence
from typing import Any

from plesio.policies.adaptive.config.bound import BoundTunerConfig
from plesio.policies.adaptive.config.gradient import GradientMonitorConfig
from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.config.system import SystemConfig

from plesio.policies import Action, Adaptive, EventLog, Reviewed, Steer
from plesio.policies.replay import LogEntry

NUM_WORKERS = 4
EVEN = [0.010] * NUM_WORKERS
POLICY = Adaptive(
    system=SystemConfig(gain=0.05, tolerance=0.02),
    gradient=GradientMonitorConfig(),
    phase=PhaseConfig(direction="first"),
    feedback=BoundTunerConfig(),
)


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


def system(bsp_s: float, *, step_s: float, least_s: float, **others: float) -> dict[str, float]:
    figures = {"system.bsp_step_s": bsp_s, "system.step_s": step_s, "system.least_step_s": least_s}
    return figures | {f"{name}.slack": slack for name, slack in others.items()}


def log_of(*rounds: tuple[list[Reviewed], Steer | None], policy: Adaptive = POLICY) -> EventLog:
    entries = []
    for reviews, answer in rounds:
        for review in reviews:
            actions: tuple[Action, ...] = (answer,) if review is reviews[-1] and answer is not None else ()
            entries.append(LogEntry(event=review, actions=actions))
    return EventLog(policy=policy, entries=tuple(entries))


NETWORK = log_of(
    (
        reviewed(3, EVEN, [0.030] * 3),
        steer(5, "bsp", before="bsp", inputs=system(0.040, step_s=0.040, least_s=0.010, phase=0, feedback=0)),
    ),
    (
        reviewed(19, EVEN, [0.030] * 16),
        steer(
            21,
            "local_sgd:2",
            before="bsp",
            keep=True,
            inputs=system(0.040, step_s=0.020, least_s=0.010, feedback=1),
            reason="a step takes 20 ms and would take 40 ms under bsp; 3 stable reviews, so feedback allows a slack of "
            "1 steps",
        ),
    ),
    (
        reviewed(36, EVEN, [0.0, 0.020] * 7),
        steer(
            38,
            "local_sgd:2",
            before="local_sgd:2",
            inputs=system(0.042, step_s=0.020, least_s=0.0195, feedback=3) | {"progress.after": 0.25},
            reason="the noise is known now",
        ),
    ),
)
"""Forty steps of 40 ms under bsp, half of that under local_sgd:2; the phase holds it back, and then the feedback."""

SLOW_SHARES = (0.3, 0.3, 0.3, 0.1)
SLOW = log_of(
    (
        reviewed(19, [0.010, 0.010, 0.010, 0.030], [0.002] * 19),
        steer(21, "bsp", before="bsp", shares=SLOW_SHARES, inputs=system(0.014, step_s=0.014, least_s=0.012)),
    ),
    (
        reviewed(35, [0.012] * 4, [0.002] * 14, samples=(36, 36, 36, 12)),
        steer(37, "bsp", before="bsp", shares=SLOW_SHARES, inputs=system(0.014, step_s=0.014, least_s=0.012)),
    ),
)
"""Worker 3 takes three times as long, and so a third of the samples: 12 ms for all, and 2 ms to exchange."""

DIVERGED = log_of(
    (
        reviewed(4, EVEN, [0.030] * 4),
        steer(6, "local_sgd:2", before="bsp", keep=True, inputs=system(0.04, step_s=0.02, least_s=0.02)),
    ),
    (
        reviewed(20, EVEN, [0.0, 0.020] * 7),
        steer(
            22,
            "bsp",
            before="local_sgd:2",
            restore=True,
            inputs=system(0.04, step_s=0.04, least_s=0.02) | {"guard.loss": 9.0},
            reason="the loss is 9, 12 times its noise above 1: back to bsp and to the last good state",
        ),
    ),
)


FAST = system(0.015, step_s=0.015, least_s=0.015)
