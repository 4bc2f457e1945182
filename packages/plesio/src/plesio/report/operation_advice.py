"""Advice on how a run went: a sentence for each rule of practice that it breaks, with its figures.

The thresholds are those of the text's operational rules (`plesio list chapter rules`): communication above 30 % of
the time, computing below 60 %, a p99 of the steps above 1.2 times their p50. That a slow worker needs shares, and
delays that pass need slack, is this project's own finding (`docs/planning/studies/consistency.md`).
"""

from collections.abc import Sequence

from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.policies import parse_policy
from plesio.policies.grid import is_grid
from plesio.report.operation import Exchanges, Operation
from plesio.report.sentences import share_text

_LARGEST_COMMUNICATE_SHARE = 0.30
_LEAST_COMPUTE_SHARE = 0.60
_LARGEST_STEP_RATIO = 1.2
NOTHING_TO_ADVISE = (
    "Nothing to advise: communication, waiting, the spread of steps, the sizes of messages and what compression keeps "
    "back are within bounds."
)
_GROWS = 1.5
"""Residuals that grow less are as good as level."""
_LITTLE_WAITING = 0.1
"""Share of the time; where workers wait less, it does not matter how their steps vary."""
_SLOW_PACE = 0.5
"""Share of the quickest exchange's bytes a second; below it latency decides, not bandwidth."""


def operation_advice(operation: Operation, *, beside: Sequence[Operation] = ()) -> list[str]:
    """Write a sentence or two for each rule that the run breaks; ``beside`` shows how quick the same network can be."""
    found = [
        _communication(operation),
        _computing(operation),
        _steps(operation),
        _messages(operation, beside),
        _residual(operation),
    ]
    return [text for text in found if text]


def operations_advice(operations: Sequence[Operation]) -> dict[str, list[str]]:
    """Write advice by policy, for runs on the same network; policies without any are left out."""
    found = {operation.policy: operation_advice(operation, beside=operations) for operation in operations}
    return {policy: texts for policy, texts in found.items() if texts}


def _communication(operation: Operation) -> str:
    if operation.communicate_share <= _LARGEST_COMMUNICATE_SHARE:
        return ""
    if operation.policy.startswith("adaptive"):
        remedy = (
            "adaptive has taken what pays of rarer and smaller exchanges; a quicker network or a larger batch is left"
        )
    else:
        remedy = _rarer_or_smaller(operation.policy)
    return (
        f"Communication takes {_percent(operation.communicate_share)} of the workers' time, more than "
        f"{share_text(_LARGEST_COMMUNICATE_SHARE)}: {remedy}."
    )


def _rarer_or_smaller(policy: str) -> str:
    """List the ways to communicate less that the policy does not use yet."""
    period, delay = (
        (1, 0) if is_grid(policy) or not policy else (parse_policy(policy).period, parse_policy(policy).delay)
    )
    rarer = next((larger for larger in (8, 32) if larger > period), None)
    ways = [
        *([f"exchange more rarely (local_sgd:{rarer})"] if rarer else []),
        *([] if "compress=" in policy else ["send less (compress=qsgd:8)"]),
        *([] if delay else ["go on meanwhile (delay=1)"]),
    ]
    if not ways:
        return "it exchanges seldom, little and meanwhile already; a quicker network or a larger batch is left"
    return " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


def _computing(operation: Operation) -> str:
    if operation.compute_share >= _LEAST_COMPUTE_SHARE:
        return ""
    return (
        f"Workers compute for {_percent(operation.compute_share)} of their time, less than "
        f"{share_text(_LEAST_COMPUTE_SHARE)}, and wait for each other for {_percent(operation.wait_share)}: more "
        "workers of this kind would add little."
    )


def _steps(operation: Operation) -> str:
    steps = operation.steps
    if steps is None or steps.ratio <= _LARGEST_STEP_RATIO or operation.wait_share < _LITTLE_WAITING:
        return ""
    text = (
        f"The p99 of a step's computing is {steps.ratio:.1f} times its p50 ({format_seconds(steps.p99_s)} against "
        f"{format_seconds(steps.p50_s)}), more than {_LARGEST_STEP_RATIO:g}"
    )
    if steps.slowest_ratio > _LARGEST_STEP_RATIO:
        return (
            f"{text}: worker {steps.slowest} takes {steps.slowest_ratio:.1f} times as long as the median worker all "
            f"along, {_slow_worker(operation.policy)}, or leave it out."
        )
    if steps.own_ratio > _LARGEST_STEP_RATIO:
        return (
            f"{text}, by delays that come and go on every worker alike: under a barrier all wait for each of them; "
            "bounded staleness (ssp:4), a backup worker (bsp,backup=1) or local steps average them out."
        )
    return f"{text}."


def _slow_worker(policy: str) -> str:
    """Name what a worker that is slow all along asks for and the policy does not do yet."""
    if policy and not is_grid(policy) and parse_policy(policy).looks_at_pace:
        return "and makes fewer steps for that already (steps=dynamic); a smaller quorum or grace waits less for it"
    return "which no staleness bound mends; give it a smaller share (adaptive)"


def _messages(operation: Operation, beside: Sequence[Operation]) -> str:
    exchanges = operation.exchanges
    if exchanges is None or exchanges.bytes_per_s is None:
        return ""
    larger = [
        other
        for other in beside
        if other.exchanges is not None
        and other.exchanges.bytes_per_s is not None
        and other.exchanges.num_bytes > exchanges.num_bytes
    ]
    quickest = max(larger, key=_pace, default=None)
    if quickest is None or exchanges.bytes_per_s >= _SLOW_PACE * _pace(quickest):
        return ""
    assert quickest.exchanges is not None, "chosen above"
    return (
        f"An exchange sends {_message_text(exchanges)} a worker at {format_bandwidth(exchanges.bytes_per_s)}, where "
        f"{quickest.policy} sends {_message_text(quickest.exchanges)} at {format_bandwidth(_pace(quickest))}: latency "
        "decides for messages of this size, so fewer exchanges help, and smaller ones do not."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _pace(operation: Operation) -> float:
    exchanges = operation.exchanges
    return 0.0 if exchanges is None or exchanges.bytes_per_s is None else exchanges.bytes_per_s


def _message_text(exchanges: Exchanges) -> str:
    buckets = exchanges.buckets_bytes
    if len(buckets) < 2:
        return format_bytes(exchanges.num_bytes)
    sizes = f"{format_bytes(min(buckets))} to {format_bytes(max(buckets))}"
    return f"{format_bytes(exchanges.num_bytes)} (of {len(buckets)} buckets of {sizes})"


def _residual(operation: Operation) -> str:
    growth = operation.residual_growth
    if growth is None or growth <= _GROWS:
        return ""
    third = len(operation.residuals) // 3
    last = sum(operation.residuals[-third:]) / third
    return (
        f"What compression keeps back grows: to {last:.1f} times an update on average, {growth:.1f} times as much as "
        "at first. Keep more of each update, or exchange in full."
    )
