"""Bytes that a worker needs under each candidate, and whether a host has them.

A replica is parameters, gradients and what the optimizer keeps; a step adds activations. On top of that comes

    bsp               nothing: DDP's buckets are the gradients themselves
    delayed:d         the gradients of d rounds that are under way
    local_sgd         the parameters of the last averaging; with a delay those under way, with an outer step a momentum,
                      with the mean's moments a mean of gradients
    diloco            the shared parameters and the outer momentum, and what is under way of a fragment; on the store a
                      server's part of these
    ssp, asp          no optimizer on the worker, but a server's part of parameters and optimizer, and what is pushed
    compressed        what was not sent, where that is kept
    fsdp              an n-th of parameters, gradients and optimizer, and twice the largest block that is gathered
                      (ZeRO's third stage, Rajbhandari et al. 2020, section 5)
    adaptive          the most of what it may change to

The memory of Python, torch and the data is not counted: on an accelerator it is little, on a host it is the same for
all.
"""

from dataclasses import dataclass

from plesio.advisor.candidates import ADAPTIVE, SHARDED
from plesio.advisor.price import usual_servers
from plesio.advisor.setting import Situation
from plesio.policies import DiLoCo, Hierarchical, LocalSGD, Policy, parse_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes of a worker, by what they are for."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    exchange: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.exchange


def memory_need(spec: str, at: Situation, *, servers: int | None = None) -> MemoryNeed:
    """Return a worker's need under a candidate.

    Args:
        spec: A policy's text, or the name of the sharded replica.
        at: Place of the training.
        servers: Servers of the store, if there is one; as usual without.
    """
    if spec == SHARDED:
        block = at.scale * at.sizes.block_bytes
        share = at.num_bytes / at.num_workers
        return _need(at, parameters=share, gradients=share, optimizer_share=1 / at.num_workers, exchange=2 * block)
    if spec == ADAPTIVE:
        return max((memory_need(one, at) for one in ("local_sgd:8,delay=4", "bsp")), key=lambda one: one.total)
    policy = parse_policy(spec)
    outer: Policy = policy.outer if isinstance(policy, Hierarchical) else policy
    if outer.exchange == "store":
        count = usual_servers(at) if servers is None else servers
        on_servers = outer.pushes == "gradient"  # else each worker's own optimizer steps
        served = (at.num_bytes + on_servers * at.scale * at.sizes.optimizer_bytes) / count
        if isinstance(outer, DiLoCo) and outer.outer_momentum > 0:
            served += at.num_bytes / count
        if outer.compresses_pulls:
            served += at.num_workers * at.num_bytes / count
        steps = not on_servers or outer.delay > 0  # behind an exchange, a worker's own optimizer
        copies = 1.0 + (outer.delay > 0) + outer.compression.keeps_residual
        return _need(at, optimizer_share=float(steps), exchange=served + copies * at.num_bytes)
    copies = float(policy.delay)
    if isinstance(outer, LocalSGD):
        copies = 1.0 + (outer.delay > 0) + (outer.momentum > 0)
    if isinstance(outer, DiLoCo):
        copies = 1.0 + (outer.outer_momentum > 0) + (outer.delay > 0) / outer.fragments
    copies += (outer.moments == "mean") + policy.compression.keeps_residual
    return _need(at, exchange=copies * at.num_bytes)


def _need(
    at: Situation,
    *,
    parameters: float | None = None,
    gradients: float | None = None,
    optimizer_share: float = 1.0,
    exchange: float,
) -> MemoryNeed:
    return MemoryNeed(
        parameters=at.num_bytes if parameters is None else parameters,
        gradients=at.num_bytes if gradients is None else gradients,
        optimizer=optimizer_share * at.scale * at.sizes.optimizer_bytes,
        activations=float(at.sizes.activation_bytes),
        exchange=exchange,
    )
