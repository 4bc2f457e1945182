"""The strategies and settings that are asked about.

`bsp` is what DDP does, and what all others are held against. The other candidates depend on the cluster: settings by
racks where there are racks, a store where optimizers can be run on it; local steps that keep the moments of the mean
gradient where the optimizer divides by them.
"""

import math
from dataclasses import dataclass

from plesio.policies import ASP, BSP, SSP, Hierarchical, LocalSGD, parse_policy

BASELINE, ADAPTIVE, SHARDED = "bsp", "adaptive", "fsdp"

_ALWAYS = (
    BASELINE,
    ADAPTIVE,
    "delayed:1",
    "bsp,compress=bf16",
    "bsp,compress=qsgd:8",
    "bsp,compress=powersgd:4",
    "local_sgd:2",
    "local_sgd:4",
    "local_sgd:8",
    "local_sgd:16",
    "local_sgd:4,delay=2",
    "local_sgd:8,delay=4",
    "local_sgd:16,delay=8",
    "local_sgd:4,compress=qsgd:8",
    "local_sgd:8,compress=qsgd:8",
    "delayed:1,compress=bf16",
    "local_sgd:4,inner_rate=0.25,momentum=0.5",
    "local_sgd:8,inner_rate=0.25,momentum=0.5",
    "local_sgd:8,delay=4,inner_rate=0.25,momentum=0.5",
)
_STORE = ("ssp:3", "ssp:15", "ssp:7,period=4", "asp")
_UNEQUAL = ("bsp,backup=1",)
"""On the store: where some workers are slower than others, or stall."""
_SCOUTS = frozenset(
    {
        ADAPTIVE,
        "delayed:1",
        "bsp,compress=qsgd:8",
        "local_sgd:2",
        "local_sgd:4,delay=2",
        "local_sgd:4,compress=qsgd:8",
        "local_sgd:8,moments=mean",
        "local_sgd:16",
        "ssp:3",
        "asp",
        "hier:bsp/local_sgd:8",
    }
)
"""One of each kind of slack, little and much of it: run before anything else is."""
_MOMENTS = (
    "local_sgd:2,moments=mean",
    "local_sgd:4,moments=mean",
    "local_sgd:8,moments=mean",
    "local_sgd:8,delay=4,moments=mean",
    "local_sgd:16,delay=8,moments=mean",
)
"""Under Adam and its kin."""
_RACKS_WITH_MOMENTS = ("hier:bsp/local_sgd:8,delay=4,moments=mean",)
_RACKS = (
    "hier:bsp/local_sgd:4",
    "hier:bsp/local_sgd:8",
    "hier:bsp/local_sgd:8,delay=4",
    "hier:bsp/local_sgd:16,delay=8",
    "hier:bsp/ssp:4",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy with its settings.

    Attributes:
        family: Settings of one family cost more progress the more slack they give.
        slack: Steps that a worker's part of the parameters may be behind.
        is_scout: Whether it is one of those that are run first, to see what their kind of slack costs.
        runs: Whether it can be run in the virtual world; if not, it is priced alone.
    """

    spec: str
    family: str
    slack: float
    is_scout: bool = False
    runs: bool = True


def candidates(
    *, has_racks: bool, has_store: bool, shares_moments: bool = False, is_unequal: bool = False
) -> tuple[Candidate, ...]:
    """Return all of them, `bsp` first.

    >>> [one.spec for one in candidates(has_racks=False, has_store=False)][:3]
    ['bsp', 'adaptive', 'delayed:1']
    """
    store = (*_STORE, *(_UNEQUAL if is_unequal else ())) if has_store else ()
    moments = (*_MOMENTS, *(_RACKS_WITH_MOMENTS if has_racks else ())) if shares_moments else ()
    specs = [*_ALWAYS, *store, *(_RACKS if has_racks else ()), *moments]
    if not has_store:
        specs = [spec for spec in specs if "/ssp" not in spec]
    return (*map(_candidate, specs), Candidate(spec=SHARDED, family="sharded", slack=0.0, runs=False))


def _candidate(spec: str) -> Candidate:
    policy = parse_policy(spec)
    family, slack = "strict", float(policy.period - 1 + policy.delay)
    # the cost of slack that one member shows holds for its family
    match policy:
        case Hierarchical():
            outer = policy.outer
            is_store = outer.exchange == "store"
            family = "racks on the store" if is_store else "mean-moments racks" if policy.moments == "mean" else "racks"
            slack = outer.bound if is_store else float(outer.period - 1 + outer.delay)
        case BSP() if policy.backup:
            family, slack = "backup", 0.0
        case ASP():
            family, slack = "store", math.inf
        case SSP():
            family, slack = "store", float(policy.bound)
        case LocalSGD():
            kind = "compressed " if "compress" in spec else "two-rate " if policy.momentum else ""
            kind += "mean-moments " if policy.moments == "mean" else ""
            family = f"{kind}averaging"
        case _ if spec == ADAPTIVE:
            family = "adaptive"
        case _ if policy.delay:
            family = "delayed"
        case _ if "compress" in spec:
            family = "compressed"
    return Candidate(spec=spec, family=family, slack=slack, is_scout=spec in _SCOUTS)
