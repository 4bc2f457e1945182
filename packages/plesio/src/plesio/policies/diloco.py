"""DiLoCo: workers train alone for H steps, and an outer optimizer steps the shared parameters by what they came to.

Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105). With the
shared parameters θ, from which all workers set out, and θ_m, which worker m has after H local steps,

    G = mean of θ - θ_m          the outer gradient
    v <- μ v + G                 θ <- θ - η (G + μ v)          Nesterov's momentum, as torch.optim.SGD has it

and every worker goes on from θ. The state of the workers' own optimizers is never sent. θ is what is evaluated and
saved. With η = 1 and μ = 0 it is the mean of the workers, and the policy is local SGD. With ``moments=mean`` the
workers' optimizers remember the mean gradient, as there.

*Streaming* (Douillard et al. 2025, "Streaming DiLoCo", arXiv 2501.18512). The tensors are divided into P fragments, and
every H/P steps the next fragment is exchanged, so the links carry a P-th at a time. With a delay of τ steps an exchange
runs behind the next τ steps; at its end a worker takes θ <- α θ_own + (1 - α) θ_shared, so it keeps a share α of its
steps meanwhile. (Without a delay it takes θ_shared, whatever α is.)

    H 6, fragments 2, delay 1    clock  1  2  3  4  5  6  7  8  9  10
    contributes fragment                      0        1        0
    merges fragment                              0        1         0

*Decoupled* (``exchange=store``; "Decoupled DiLoCo", arXiv 2604.21428). The servers of the store keep θ and make the
outer steps. A worker sends its delta after its own H steps and takes over the newest θ, and a step of θ is made as soon
as a quorum of workers has contributed, to each fragment by itself: see `plesio.policies.decoupled`.

*Radial-directional averaging* (``merge=rda``; "Decoupled DiLoCo", arXiv 2604.21428): tensor by tensor, the mean of the
outer gradients' lengths in the mean of their directions. A plain mean of gradients that disagree is shorter than they.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plesio.core.errors import PolicySpecError
from plesio.core.within import ABOVE_0, AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.barrier import BarrierMachine
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.decoupled import DecoupledMachine, Merging
from plesio.policies.fields import require_moments_met, require_read_alone
from plesio.policies.outer_rule import OuterRule
from plesio.policies.policy import ExchangeKind, MergeKind, MomentsKind, Policy, PolicyMachine

_ALPHA = 0.5
_OUTER_RATE = 0.7
_LONGEST_GRACE_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class DiLoCo(Policy):
    """Workers train alone for ``local_steps``; the mean of what they came to is the gradient of an outer optimizer.

    Args:
        local_steps: H, a worker's steps between two exchanges of a tensor.
        outer: The outer optimizer: SGD with Nesterov's momentum, or with plain momentum, or Adam.
        outer_lr: η, its learning rate.
        outer_momentum: μ, its momentum, 0 to below 1; Adam's first beta.
        fragments: P, groups of whole tensors that are exchanged in turn; it divides ``local_steps``.
        delay: τ, steps behind which an exchange is hidden, at most those between two exchanges; 0 waits for it.
        alpha: α, the share of its own parameters that a worker keeps at a merge; only with a delay.
        merge: ``mean`` of the outer gradients, or ``rda``: the mean of their lengths in the mean of their directions.
        exchange: ``collective`` (default), where all meet, or ``store``, where a quorum is enough.
        quorum: K, workers that contribute to an outer step on the store at least.
        grace: Seconds for which others may join a quorum; ``auto``: half of the time that the delay's steps take.
        weight: A delta counts the same in the mean (``equal``) or by its samples (``tokens``), on the store.
        steps: Slow workers make as many local steps as others (``even``), or fewer in proportion (``dynamic``).
        late: A delta from an older version of θ counts as it is (``plain``), or with less of its part along the outer
            momentum (``heloco``), on the store.
        moments: Memory of a worker's Adam, AdamW, RMSprop or Adagrad: as of `LocalSGD`, on the collective.
        compression: Compression of outer gradients.

    Raises:
        PolicySpecError: A value that is out of range, exchanges that do not fit between each other, or what only the
            other exchange has.

    >>> policy = DiLoCo(local_steps=30, fragments=3, delay=5)
    >>> policy.spec, policy.period, policy.bound, policy.merges_at(15), policy.fragments_at(20)
    ('diloco:30,fragments=3,delay=5', 10, 14, 10, (1,))
    """

    name: ClassVar[str] = "diloco"
    _argument: ClassVar[str | None] = "local_steps"
    can_be_stage: ClassVar[bool] = True

    local_steps: Annotated[int, AT_LEAST_1] = 30
    outer: Literal["nesterov", "sgd", "adam"] = "nesterov"
    outer_lr: Annotated[float, ABOVE_0] = _OUTER_RATE
    outer_momentum: Annotated[float, Within(0, 1, without="high")] = 0.9
    fragments: Annotated[int, AT_LEAST_1] = 1
    delay: Annotated[int, AT_LEAST_0] = 0
    alpha: Annotated[float, Within(0, 1, without="high")] = _ALPHA
    merge: MergeKind = "mean"
    exchange: ExchangeKind = "collective"
    quorum: Annotated[int, AT_LEAST_1] = 1
    grace: Annotated[
        Annotated[float, Within(0, _LONGEST_GRACE_S)] | Literal["auto"],
        "a number of seconds from 0 to 3600, or auto",
    ] = 0.0
    weight: Literal["equal", "tokens"] = "equal"
    steps: Literal["even", "dynamic"] = "even"
    late: Literal["plain", "heloco"] = "plain"
    moments: MomentsKind = "own"
    compression: Compression = NO_COMPRESSION

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.exchange == "collective":
            self._check_without_store()
        if self.outer == "adam" and self.outer_lr == _OUTER_RATE:
            raise PolicySpecError(
                "diloco: Adam moves every number by up to outer_lr at an outer step, so it needs one of its own; write "
                "about a tenth of what local steps come to, as in outer_lr=0.003"
            )
        if self.outer == "adam" and self.compression.keeps_residual:
            raise PolicySpecError(
                "diloco: outer=adam scales each round, and what is left out of one cannot be added to the next; "
                f"write compress={self.compression.head}+no_feedback, or leave it out"
            )
        if self.local_steps % self.fragments:
            raise PolicySpecError(
                f"diloco: {self.local_steps} local steps cannot be divided among {self.fragments} fragments; write a "
                f"number of fragments that divides {self.local_steps}"
            )
        if self.exchange == "store":
            self._check_on_store()
        if self.delay > self.period:
            raise PolicySpecError(
                f"diloco: delay {self.delay} is above the {self.period} steps between two exchanges, so two would be "
                f"in flight; write a delay of {self.period} or less"
            )
        if self.moments == "mean" and self.fragments > 1:
            raise PolicySpecError(
                "diloco: moments=mean follows from how far all parameters have come since the last exchange; leave "
                "fragments or moments out"
            )
        if self.alpha != _ALPHA and not self.delay:
            raise PolicySpecError(
                "diloco: alpha is what a worker keeps of its steps behind an exchange, and without a delay there are "
                "none; leave it out, or write a delay"
            )
        if self.merge == "rda" and self.exchange == "collective" and self.compression.keeps_residual:
            raise PolicySpecError(
                "diloco: merge=rda sends directions, and what is left out of one cannot be added to the next; write "
                f"compress={self.compression.head}+no_feedback, or leave merge out"
            )

    def _check_on_store(self) -> None:
        require_moments_met("diloco", moments=self.moments)
        require_read_alone("diloco", compress=self.compression.spec, on_store=self.compression.on_store)
        if self.merge == "rda" and self.quorum == 1 and self.grace == 0:
            raise PolicySpecError(
                "diloco: merge=rda is of deltas in a mean, and with a quorum of 1 and no grace each is merged by "
                "itself; write a quorum of 2 or more or a grace above 0, or leave merge out"
            )
        if self.late == "heloco" and (self.outer != "nesterov" or not self.outer_momentum):
            instead = "outer=nesterov" if self.outer != "nesterov" else "an outer_momentum above 0"
            raise PolicySpecError(
                "diloco: late=heloco turns late deltas by the outer momentum, which outer=nesterov alone has on the "
                f"store; write {instead}, or leave late out"
            )
        if self.late == "heloco" and self.delay:
            raise PolicySpecError(
                "diloco: late=heloco is for the deltas of slow workers, and behind a delay all are late; leave delay "
                "or late out"
            )
        if self.weight == "tokens" and self.fragments > 1:
            raise PolicySpecError(
                "diloco: weight=tokens counts the samples since a worker's last contribution, and a fragment's delta "
                "covers those of several; leave fragments or weight out"
            )
        if self.delay >= self.period:
            raise PolicySpecError(
                f"diloco: on the store a delta is merged before the next is sent; write a delay of {self.period - 1} "
                "or less"
            )
        if self.grace == "auto" and not self.delay:
            raise PolicySpecError(
                "diloco: grace=auto is a part of the time that a delay's steps take, and without a delay there are "
                "none; write a delay, or a grace in seconds"
            )
        if self.outer == "sgd" and self.outer_momentum:
            raise PolicySpecError(
                "diloco: the store merges deltas as they come, which needs momentum that looks ahead; leave outer out, "
                "write outer_momentum=0, or use exchange=collective"
            )
        if self.weight == "tokens" and self.quorum == 1 and self.grace == 0:
            raise PolicySpecError(
                "diloco: weight is of deltas in a mean, and with a quorum of 1 and no grace each is merged by itself; "
                "write a quorum of 2 or more or a grace above 0, or leave weight out"
            )
        if self.steps == "dynamic" and self.delay == self.period - 1:
            raise PolicySpecError(
                f"diloco: steps=dynamic lets slow workers make fewer steps, but behind a delay of {self.delay} none "
                f"makes fewer than {self.period}; write more local steps, or leave steps out"
            )

    def _check_without_store(self) -> None:
        for key, plain in (("quorum", 1), ("grace", 0.0), ("weight", "equal"), ("steps", "even"), ("late", "plain")):
            if getattr(self, key) != plain:
                raise PolicySpecError(
                    f"diloco: {key} is for workers that do not all wait for each other; leave it out, or write "
                    "exchange=store"
                )

    @property
    def period(self) -> int:
        """Local steps between two exchanges, each of the next fragment: H/P."""
        return self.local_steps // self.fragments

    @property
    def bound(self) -> float:
        """Largest lead allowed, in steps; none on the store."""
        return math.inf if self.exchange == "store" else self.period + self.delay - 1

    @property
    def synchronous(self) -> bool:
        """True on the collective, where every exchange waits for all."""
        return self.exchange == "collective"

    @property
    def credit_ahead(self) -> int:
        """Steps before the end of its credit at which a worker begins an exchange: those that hide it."""
        return self.delay if self.exchange == "store" else 0

    @property
    def compresses_pulls(self) -> bool:
        """True on the store, where a worker trains long enough on what it pulls."""
        return self.exchange == "store" and self.compression != NO_COMPRESSION

    @property
    def looks_at_pace(self) -> bool:
        """True if slow workers make fewer steps."""
        return self.steps == "dynamic"

    def exchanges_at(self, clock: int) -> bool:
        """Return True if a worker contributes after step ``clock``; on the store its credit tells it when."""
        return self.exchange == "collective" and Policy.exchanges_at(self, clock)

    @property
    def outer_step(self) -> OuterRule:
        """The outer optimizer."""
        return OuterRule(kind=self.outer, rate=self.outer_lr, momentum=self.outer_momentum, num_steps=self.local_steps)

    @property
    def own_share(self) -> float:
        """α; 0 without a delay."""
        return self.alpha if self.delay else 0.0

    def fragments_at(self, clock: int) -> tuple[int, ...]:
        """Return the fragment that is exchanged after step ``clock``."""
        return ((clock // self.period - 1) % self.fragments,)

    def start(self, *, clock: int = 0) -> PolicyMachine:
        if self.exchange == "store":
            return DecoupledMachine(
                local_steps=self.local_steps,
                quorum=self.quorum,
                grace=self.grace,
                delay=self.delay,
                fragments=self.fragments,
                dynamic=self.steps == "dynamic",
                merging=Merging(
                    by_samples=self.weight == "tokens",
                    by_directions=self.merge == "rda",
                    corrects=self.late == "heloco",
                ),
                clock=clock,
            )
        return BarrierMachine(period=self.period, delay=self.delay, clock=clock)
