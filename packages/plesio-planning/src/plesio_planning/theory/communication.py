"""The traffic of parallel work, and the limits of its speed."""

import math

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio_planning.theory.bound import Bound


def all_reduce_bytes(*, message_bytes: float = 700e6, num_ranks: int = 256) -> Bound:
    """An all-reduce: bytes that every rank must send, by whatever algorithm.

    ``2(N-1)/N · d`` (Patarasuk & Yuan 2009), which a ring reaches, and which is below 2d for every N.

    >>> bound = all_reduce_bytes(message_bytes=1e6, num_ranks=4)
    >>> bound.value, bound.parts["reduce-scatter"]
    (1500000.0, 750000.0)

    Args:
        message_bytes: d, what every rank has to add up with the others.
        num_ranks: N.
    """
    check_not_negative(message_bytes=message_bytes)
    check_count(num_ranks=num_ranks)
    half = (num_ranks - 1) / num_ranks * message_bytes
    return Bound(quantity="bytes that every rank sends", unit="B", parts={"reduce-scatter": half, "all-gather": half})


def speedup(*, compute_s: float = 1.0, exchange_s: float = 0.1, num_workers: int = 64) -> Bound:
    """Work split over n workers, at a communication time that does not depend on n: the speed-up.

    ``n(1+ρ)/(1+nρ)`` with ``ρ = communicate/compute`` on one worker. It is Amdahl's law (1967) with the serial share
    ``ρ/(1+ρ)``, so it never exceeds ``(1+ρ)/ρ``. One worker is charged the communication too; against one that has
    nothing to send, divide by ``1+ρ``.

    >>> bound = speedup(compute_s=1.0, exchange_s=0.1, num_workers=10)
    >>> round(bound.value, 2), round(bound.also["limit for many workers"], 2)
    (5.5, 11.0)

    Args:
        compute_s: Seconds that one worker computes for an iteration of the whole batch.
        exchange_s: Seconds of the exchange in an iteration, for any number of workers.
        num_workers: n.
    """
    check_positive(compute_s=compute_s)
    check_not_negative(exchange_s=exchange_s)
    check_count(num_workers=num_workers)
    ratio = exchange_s / compute_s
    value = num_workers * (1 + ratio) / (1 + num_workers * ratio)
    return Bound(
        quantity="speed-up over one worker",
        unit="times",
        parts={"speed-up": value},
        also={
            "efficiency": value / num_workers,
            "limit for many workers": (1 + ratio) / ratio if ratio else math.inf,
            "serial share (Amdahl)": ratio / (1 + ratio),
        },
    )


def best_num_workers(
    *,
    compute_s: float = 10.0,
    latency_s: float = 10e-6,
    messages_per_worker: float = 2.0,
    message_bytes: float = 700e6,
    bytes_per_s: float = 25e9,
) -> Bound:
    """The number of workers with the shortest iteration, and what that iteration is made of.

    ``T(n) = W/(nP) + αcn + d/B`` is least at ``n* = √(W/(Pαc))``: computing shrinks as n grows, latency adds up (in a
    ring c is 2), and the bytes stay. At n* computing and latency take as long as each other.

    >>> bound = best_num_workers(compute_s=2.0, latency_s=10e-6)
    >>> round(bound.also["workers"]), {name: round(part, 4) for name, part in bound.parts.items()}
    (316, {'compute': 0.0063, 'latency': 0.0063, 'bytes': 0.028})

    Args:
        compute_s: W/P, seconds that one worker would compute for an iteration.
        latency_s: α, seconds of a message.
        messages_per_worker: c, messages one after the other for every worker that takes part.
        message_bytes: d, that the busiest link carries in an iteration.
        bytes_per_s: B, of that link.
    """
    check_positive(
        compute_s=compute_s, latency_s=latency_s, messages_per_worker=messages_per_worker, bytes_per_s=bytes_per_s
    )
    check_not_negative(message_bytes=message_bytes)
    workers = math.sqrt(compute_s / (latency_s * messages_per_worker))
    return Bound(
        quantity="shortest iteration",
        unit="s",
        parts={
            "compute": compute_s / workers,
            "latency": latency_s * messages_per_worker * workers,
            "bytes": message_bytes / bytes_per_s,
        },
        also={"workers": workers},
    )


def asynchronous_rate(*, step_times_s: tuple[float, ...] = (1.0, 1.0, 1.0, 2.0)) -> Bound:
    """Workers that never wait for each other: updates a second, and how stale they are.

    The rates add up, ``Σ 1/T_i``, so that a slow worker takes nothing from the others. Between two updates of worker i
    come ``T_i Σ_{j≠i} 1/T_j`` of the others, which is its staleness; over all updates the mean is n-1, whoever is slow.

    >>> bound = asynchronous_rate(step_times_s=(1.0, 1.0, 2.0))
    >>> bound.value, bound.also["mean staleness (updates)"], bound.also["staleness of the slowest (updates)"]
    (2.5, 2, 4.0)

    Args:
        step_times_s: T_i, seconds that each worker takes for a step, its communication included.

    Raises:
        ConfigError: An argument that is out of range, or nobody.
    """
    check_count(num_workers=len(step_times_s))
    for step_s in step_times_s:
        check_positive(step_times_s=step_s)
    parts = {f"worker {worker}": 1 / step_s for worker, step_s in enumerate(step_times_s)}
    rate = sum(parts.values())
    return Bound(
        quantity="rate of all workers",
        unit="updates/s",
        parts=parts,
        also={
            "mean staleness (updates)": len(step_times_s) - 1,
            "staleness of the fastest (updates)": rate * min(step_times_s) - 1,
            "staleness of the slowest (updates)": rate * max(step_times_s) - 1,
            "gradients behind a barrier (1/s)": len(step_times_s) / max(step_times_s),
        },
    )
