"""The price of a step under each candidate, by the cost models alone: nothing is trained for it.

The workers' steps, drawn from what step times are, run again in thought under the candidate's period, delay or bound
(`plesio.policies.adaptive.system.what_if`, which the adaptive policy decides by). What an exchange takes is

    all-reduce     rounds of a ring laid over the cluster's links (`plesio.cost.placement`)
    compressed     the same, for the collectives and bytes of the compression; its own processor time is left out
    store          the bytes of all workers up and down the servers' interfaces, and what packing and serving take
    fragments      the same, for a fragment's share of them
    by racks       a ring in each rack at every step; between racks one of the racks' first ranks, and half a ring back
    sharded        two all-gathers and a reduce-scatter (Rajbhandari et al. 2020; Zhao et al. 2023): 1.5 rings

`adaptive` is priced as the cheapest of what it chooses among, with shares of the batch in proportion to pace: a bound
from below. Prices order what is run and say what is not worth running; times that are reported come from runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plesio.advisor.candidates import ADAPTIVE, BASELINE, SHARDED
from plesio.advisor.setting import Situation, paces
from plesio.cost.host_costs import LEAST_SERVED_BYTES
from plesio.cost.placement import all_reduce_on
from plesio.policies import BSP, Hierarchical, Policy, parse_policy
from plesio.policies.adaptive.system.setting import Setting
from plesio.policies.adaptive.system.what_if import predict_step_s
from plesio.policies.compression import NO_COMPRESSION, Compression

_LARGEST_BOUND = 64
_TRIED_BY_ADAPTIVE = (
    BASELINE,
    "local_sgd:4",
    "local_sgd:8,delay=4",
    "local_sgd:16,delay=8",
    "local_sgd:8,compress=qsgd:8",
    "bsp,compress=powersgd:4",
)
_TRIED_BY_RACKS = ("hier:bsp/local_sgd:8,delay=4",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The time that a candidate takes by the cost models.

    Attributes:
        step_s: Seconds in which each worker makes a step, on average; with unequal numbers of steps, n over all rates.
        compute_s: Seconds of it that are computing.
        exchange_s: Seconds of one exchange, however much of it is hidden.
        servers: Servers of the store; None without one.
    """

    step_s: float
    compute_s: float
    exchange_s: float
    servers: int | None = None

    @property
    def waits_s(self) -> float:
        """Seconds of a step that are not computing."""
        return max(0.0, self.step_s - self.compute_s)


def price(spec: str, at: Situation) -> Price:
    """Return the price of a step under a candidate: a policy's text, or the name of the sharded replica."""
    if spec == SHARDED:
        return _sharded(at)
    if spec == ADAPTIVE:
        return _adaptive(at)
    policy = parse_policy(spec)
    match policy:
        case Hierarchical():
            return _by_racks(policy, at)
        case BSP() if policy.backup:
            return _with_backup(policy, at)
        case _ if policy.exchange == "store":
            return _on_store(policy, at)
    transfer_s = _exchange_s(policy.compression, at, range(at.num_workers), share=1 / policy.fragments)
    setting = Setting.of(period=policy.period, delay=policy.delay)
    return _priced(setting, at.compute_s, transfer_s)


def usual_servers(at: Situation) -> int:
    """Return the servers that a session has by default: one a host, and fewer for a small model."""
    return int(min(at.num_hosts, max(1, at.num_bytes // LEAST_SERVED_BYTES)))


def _priced(setting: Setting, compute_s: NDArray[np.float64], transfer_s: float, *, beside_s: float = 0.0) -> Price:
    step_s = predict_step_s(compute_s, transfer_s=transfer_s, setting=setting) + beside_s
    return Price(step_s=step_s, compute_s=float(compute_s.mean()), exchange_s=transfer_s)


def _sharded(at: Situation) -> Price:
    """Price steps together; gathering is not hidden behind computing, and neither is the all-reduce."""
    transfer_s = 1.5 * _ring_s(at.num_bytes, at, range(at.num_workers))
    return _priced(Setting.of(period=1, delay=0), at.compute_s, transfer_s)


def _adaptive(at: Situation) -> Price:
    """Price the cheapest of the policies that it tries, if all workers had shares of the batch by their pace."""
    pace = np.array(paces(at.compute_s))
    even = replace(at, compute_s=at.compute_s / pace[:, None] / (1 / pace).mean())
    specs = _TRIED_BY_ADAPTIVE + (_TRIED_BY_RACKS if at.has_racks else ())
    return min((price(spec, even) for spec in specs), key=lambda one: one.step_s)


def _exchange_s(compression: Compression, at: Situation, ranks: Sequence[int], *, share: float = 1.0) -> float:
    """Return the seconds of an exchange of a share of the parameters."""
    shapes = at.sizes.shapes
    total = 0.0
    for one in compression.collectives(shapes, num_ranks=len(ranks)):
        passes = 1.0 if one.operation == "all_reduce" else 0.5
        total += passes * _ring_s(share * at.scale * one.num_bytes, at, ranks)
    return total


def _ring_s(num_bytes: float, at: Situation, ranks: Sequence[int]) -> float:
    measured_s = at.costs.all_reduce(round(num_bytes))
    return measured_s if measured_s is not None else all_reduce_on(at.cluster, list(ranks), num_bytes)


def _with_backup(policy: BSP, at: Situation) -> Price:
    """Price steps on the store that wait for all but the slowest, whose dropped work is done again by others."""
    transfer_s, servers = _store_s(at, servers=usual_servers(at), workers=at.num_workers), usual_servers(at)
    counted = max(1, at.num_workers - policy.backup)
    waited_s = float(np.sort(at.compute_s, axis=0)[counted - 1].mean())
    step_s = (waited_s + transfer_s) * at.num_workers / counted
    return Price(step_s=step_s, compute_s=float(at.compute_s.mean()), exchange_s=transfer_s, servers=servers)


def _on_store(policy: Policy, at: Situation) -> Price:
    """Price the best number of servers: on one alone all meet, on many every exchange is many messages."""
    counts = sorted({1, usual_servers(at), at.num_hosts})
    choices = [_on_servers(policy, at, servers=count) for count in counts if count <= usual_servers(at)]
    return min(choices, key=lambda one: (round(one.step_s, 7), one.servers != usual_servers(at)))


def _on_servers(policy: Policy, at: Situation, *, servers: int) -> Price:
    transfer_s = _store_s(at, servers=servers, workers=at.num_workers, ways=_ways(policy, at))
    if math.isinf(policy.bound):
        pace_s = np.array(paces(at.compute_s))
        own_s = pace_s + np.maximum(0.0, transfer_s - policy.delay * pace_s) / policy.period
        step_s = len(own_s) / float((1 / own_s).sum())
        compute_s = len(own_s) / float((1 / pace_s).sum())
        return Price(step_s=step_s, compute_s=compute_s, exchange_s=transfer_s, servers=servers)
    bound = int(min(policy.bound, _LARGEST_BOUND))
    setting = Setting(slack=1, period=policy.period, delay=policy.delay, bound=bound)
    return replace(_priced(setting, at.compute_s, transfer_s), servers=servers)


def _ways(policy: Policy, at: Situation) -> float:
    """Return the parts of the parameters that a push and a pull carry together; 2 in full."""
    shapes = at.sizes.shapes
    share = policy.compression.payload_bits(shapes) / NO_COMPRESSION.payload_bits(shapes)
    return (share + (share if policy.compresses_pulls else 1.0)) / policy.fragments


def _store_s(at: Situation, *, servers: int, workers: int, ways: float = 2.0) -> float:
    """Return the seconds of a push and a pull, of so many times the parameters, while all others' are under way."""
    num_bytes, costs = at.num_bytes, at.costs
    link = at.cluster.local if at.num_hosts == 1 else at.cluster.nic
    slowest = link.bytes_per_s
    if at.cluster.uplink is not None and len(at.racks) > 1:
        share = at.cluster.uplink.bytes_per_s / max(map(len, at.racks))
        slowest = min(slowest, share)
    # a server's interface carries what all workers send it; a worker's what it sends to all
    busiest = max(num_bytes, workers * num_bytes / servers if at.num_hosts > 1 else workers * num_bytes)
    way_s = 2 * link.latency_s + ways * busiest / slowest
    packing_s = 2 * (costs.pack_s + (servers - 1) * costs.message_s) + ways * num_bytes / costs.pack_bytes_per_s
    serving_s = 2 * costs.serve_s + ways * num_bytes / servers / costs.serve_bytes_per_s
    return way_s + packing_s + serving_s


def _by_racks(policy: Hierarchical, at: Situation) -> Price:
    inside_s = max(_ring_s(at.num_bytes, at, ranks) for ranks in at.racks)
    steps_s = np.stack([at.compute_s[list(ranks)].max(axis=0) for ranks in at.racks]) + inside_s
    outer = policy.outer
    if outer.exchange == "store":
        between_s = _store_s(
            at, servers=min(usual_servers(at), len(at.racks)), workers=len(at.racks), ways=_ways(outer, at)
        )
        setting = Setting(slack=1, period=outer.period, delay=0, bound=int(min(outer.bound, _LARGEST_BOUND)))
        found = _priced(setting, steps_s, between_s, beside_s=inside_s / 2)
    else:
        between_s = _exchange_s(outer.compression, at, [ranks[0] for ranks in at.racks])
        setting = Setting.of(period=outer.period, delay=outer.delay)
        found = _priced(setting, steps_s, between_s, beside_s=inside_s / 2 / outer.period)
    return replace(found, compute_s=float(at.compute_s.mean()))
