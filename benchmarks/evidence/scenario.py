"""A scenario, and its draw from a seed.

Seeds come in blocks of forty, and a block covers every axis evenly: forty strata of an axis are dealt out to the forty
seeds by a permutation of the block's own, and each seed draws inside its stratum (Latin hypercube, McKay et al. 1979).
Seeds 1000 to 1039 are one block, and 1040 to 1079 the next; `wide` and `fresh` are a block each. Network and stragglers
share one axis, so that each kind of straggler meets slow and fast networks.

Seeds from `WIDE` on have more optimizers and schedules, and axes of their own after the others: clipping, accumulated
gradients, a leap of the data, frozen parts, and a worker that is lost or joins.

Scale. Real models are large and ours are tiny; what counts is how long an exchange takes beside a step. So a scenario
has a nominal model of ``nominal_bytes`` on a nominal link, whose ring all-reduce takes ``exchange_share`` of a step,
and the link that is simulated is slower by tiny bytes / nominal bytes: the tiny model's exchange on it takes as long as
the nominal model's would.
"""

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from families import FAMILIES

T = TypeVar("T")
BLOCK = 40
SETS: Mapping[str, range] = {
    "dev": range(100),
    "looked_at": range(1000, 1040),
    "report": range(1040, 1080),
    "wide": range(3000, 3051),
    "fresh": range(2000, 2060),
}
"""To develop on, reported once and developed on since, to report; with the wide axes to develop on, and to report.

Nothing is chosen by what `report` and `fresh` do.
"""
WIDE = 2000
MORE_SCHEDULES = ("one-cycle", "one-cycle-momentum", "plateau")
"""Names of schedules that only wide scenarios have."""
RATE_FACTORS = (0.5, 0.71, 1.0, 1.41, 2.0)
WORKERS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
BATCHES = (8, 16, 32)
STRAGGLERS = ("equal", "transient", "persistent") * 3 + ("equal",)
FAST_STRATA = 12
"""Strata, of forty, with exchanges of less than `LITTLE` of a step."""
LITTLE = 0.05
LEAST_BYTES_PER_S, MOST_BYTES_PER_S = 10e6 / 8, 25e9 / 8
LEAST_BYTES, MOST_BYTES = 40e3, 2e9
MOST_GLOBAL_BATCH = 512
LEAST_FOR_RACKS, LEAST_FOR_CHANGES = 8, 3
"""Workers."""
LEAST_BATCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """From ``at_share`` of the run on (as BSP would take it), interfaces have ``factor`` times their bandwidth."""

    at_share: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChange:
    """At ``at_share`` of the run (as BSP would take it) a worker is lost, or one more joins."""

    at_share: float
    kind: Literal["lose", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario.

    Attributes:
        seed: What it is drawn from; the seed of its data, too.
        family: A name in FAMILIES.
        difficulty: The family's option.
        optimizer: A name in `plain.OPTIMIZERS`.
        schedule: A name that `plain.make_schedule` knows, or plateau.
        rate_factor: The rate over the tuned one.
        num_workers: One on each host.
        batch_size: Samples in a backward pass of a worker.
        num_steps: Steps of a worker, when all take equally many.
        step_s: Mean seconds of a step.
        step_cv: Its coefficient of variation, of the log-normal distribution of anybody's steps.
        stall_probability: Chance that a step of anybody stalls, and
        stall_factor: how many times as long it takes then.
        slow_factors: By how much the last workers are slower in every step; one or two of them.
        racks: Racks; 1 is none.
        oversubscription: Bandwidth of a rack's hosts over that of its uplink.
        exchange_share: Seconds of an all-reduce of the nominal model over ``step_s``, latency aside.
        nominal_bytes: Of the nominal model.
        nic_bytes_per_s: Of the nominal link.
        link_changes: When interfaces become slower or faster; empty is never.
        accumulation: Backward passes in a step.
        clip_norm: To which the script clips the norm of gradients; None is not.
        leap_at_share: Share of the samples after which the inputs leap (`families.Leapt`); None is never. Points are
            then of the inputs after the leap, throughout.
        frozen: The family's backbone is not trained.
        worker_change: A loss or a join; None is neither.
    """

    seed: int
    family: str
    difficulty: float
    optimizer: str
    schedule: str
    rate_factor: float
    num_workers: int
    batch_size: int
    num_steps: int
    step_s: float
    step_cv: float
    stall_probability: float
    stall_factor: float
    slow_factors: tuple[float, ...]
    racks: int
    oversubscription: float
    exchange_share: float
    nominal_bytes: float
    nic_bytes_per_s: float
    link_changes: tuple[LinkChange, ...]
    accumulation: int = 1
    clip_norm: float | None = None
    leap_at_share: float | None = None
    frozen: bool = False
    worker_change: WorkerChange | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.seed:04d}-{self.family}"

    @property
    def wide(self) -> bool:
        """It is drawn with the wide axes."""
        return self.seed >= WIDE

    @property
    def more(self) -> str:
        """Text on what it has of the wide axes."""
        parts = [
            f"{self.accumulation} passes a step" if self.accumulation > 1 else "",
            f"clips at {self.clip_norm:g}" if self.clip_norm is not None else "",
            f"leaps at {self.leap_at_share:.2f}" if self.leap_at_share is not None else "",
            "frozen" if self.frozen else "",
            f"{self.worker_change.kind} at {self.worker_change.at_share:.2f}" if self.worker_change else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def stragglers(self) -> str:
        """Their kind: equal, transient or persistent."""
        return "persistent" if self.slow_factors else "transient" if self.stall_probability else "equal"

    @property
    def nothing_to_gain(self) -> bool:
        """Workers are equal, and an exchange takes less than 5 % of a step, also after its links have changed."""
        slowest = min((change.factor for change in self.link_changes), default=1.0)
        return self.stragglers == "equal" and self.exchange_share / min(1.0, slowest) < LITTLE

    @property
    def num_rounds(self) -> int:
        """Backward passes of a worker, when all make equally many."""
        return self.num_steps * self.accumulation

    @property
    def global_batch(self) -> int:
        """Samples in a round: a backward pass of each of the workers that the run begins with."""
        return self.num_workers * self.batch_size

    @property
    def num_samples(self) -> int:
        """Samples of a run."""
        return self.num_rounds * self.global_batch

    @property
    def leaps(self) -> bool:
        """The inputs leap."""
        return self.leap_at_share is not None

    @property
    def leaps_after(self) -> float:
        """Samples of all workers after which the inputs leap."""
        return math.inf if self.leap_at_share is None else self.leap_at_share * self.num_samples

    @property
    def expected_s(self) -> float:
        """Seconds that BSP's steps and exchanges would take without stragglers and changes."""
        return self.num_steps * self.step_s * (1 + self.exchange_share)

    def pass_sizes(self) -> Iterator[int]:
        """Yield the samples in each backward pass of all workers together, as BSP would have them."""
        left, change = self.num_samples, self.worker_change
        for number in itertools.count():
            workers = self.num_workers
            if change is not None and number // self.accumulation >= change.at_share * self.num_steps:
                workers += 1 if change.kind == "join" else -1
            size = min(left, workers * self.batch_size)
            if not size:
                return
            left -= size
            yield size

    @property
    def plain_hash(self) -> str:
        """Hash of all that decides plain runs: the fields, and how problems are made and trained."""
        return self._hash("own_optimizers.py", "plain.py", "smooth.py", "tuning.py")

    @property
    def hash(self) -> str:
        """Hash of all that decides a run under a policy, beside the policy, its seed and Plesio."""
        return self._hash("own_optimizers.py", "plain.py", "smooth.py", "tuning.py", "trial.py")

    def _hash(self, *scripts: str) -> str:
        text = json.dumps(asdict(self), sort_keys=True) + _code(scripts)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _code(scripts: tuple[str, ...]) -> str:
    """Return the code of all families and of these scripts."""
    here = Path(__file__).parent
    return "".join(
        path.read_text() for path in [*sorted((here / "families").glob("*.py")), *map(here.joinpath, scripts)]
    )


@dataclass(frozen=True, slots=True)
class _Block:
    key: int
    size: int


def _block_of(seed: int) -> tuple[_Block, int]:
    """Return a seed's block, and its number there."""
    for seeds in (SETS["wide"], SETS["fresh"]):
        if seed in seeds:
            return _Block(seeds[0], len(seeds)), seed - seeds[0]
    key, number = divmod(seed, BLOCK)
    return _Block(key, BLOCK), number


class _Axes:
    """A seed's place on each axis, between 0 and 1."""

    def __init__(self, seed: int) -> None:
        self.block, self._number = _block_of(seed)
        self._random = np.random.default_rng([seed, 7])
        self._axis = 0

    def stratum(self) -> int:
        """Return the stratum of the next axis: from 0 on, each once in a block."""
        self._axis += 1
        return int(np.random.default_rng([self.block.key, self._axis]).permutation(self.block.size)[self._number])

    def place(self) -> float:
        """On the next axis."""
        return (self.stratum() + self._random.random()) / self.block.size

    def one_of(self, choices: tuple[T, ...]) -> T:
        """By the stratum on the next axis."""
        return choices[self.stratum() * len(choices) // self.block.size]

    def between(self, low: float, high: float) -> float:
        """By the place on the next axis, evenly in the logarithm."""
        return _between(self.place(), low, high)


def _between(place: float, low: float, high: float) -> float:
    return round(math.exp(math.log(low) + place * math.log(high / low)), 6)


def draw(seed: int) -> Scenario:
    """Draw the scenario of a seed; the same for ever, unless this file changes."""
    axes = _Axes(seed)
    wide = seed >= WIDE
    name = axes.one_of(tuple(name for name, family in FAMILIES.items() if wide or not family.sparse))
    family = FAMILIES[name]
    optimizer = axes.one_of((*family.optimizers, *family.more_optimizers) if wide else family.optimizers)
    schedule = axes.one_of((*family.schedules, *MORE_SCHEDULES) if wide else family.schedules)
    num_workers = axes.one_of(WORKERS)
    network = axes.stratum()
    stragglers = STRAGGLERS[network % len(STRAGGLERS)]
    step_s = axes.between(0.005, 0.05)
    share = _exchange_share(network, axes.place(), size=axes.block.size)
    link = _link(axes.place(), share=share, step_s=step_s, num_workers=num_workers)
    most_racks, oversubscription = axes.one_of((1, 1, 1, 2, 2, 4)), axes.between(1.0, 8.0)
    racks = most_racks if num_workers >= LEAST_FOR_RACKS else 1
    rate_factor, batch_size = axes.one_of(RATE_FACTORS), axes.one_of(BATCHES)
    change, change_at = axes.one_of((None, None, None, None, 0.25, 0.1, 4.0)), axes.place()
    stall_probability, stall_factor = axes.between(0.01, 0.06), axes.between(3.0, 10.0)
    slow_factors = axes.one_of(((2.0,), (3.0,), (4.0,), (2.0, 2.0), (4.0, 4.0), (2.0, 4.0)))
    drawn = Scenario(
        seed=seed,
        family=name,
        difficulty=round(axes.place(), 3),
        optimizer=optimizer,
        schedule=schedule,
        rate_factor=rate_factor,
        num_workers=num_workers,
        batch_size=max(BATCHES[0], min(batch_size, MOST_GLOBAL_BATCH // num_workers)),
        num_steps=min(500, max(125, round(axes.between(2500, 5000) / num_workers))),
        step_s=step_s,
        step_cv=axes.between(0.02, 0.1),
        stall_probability=stall_probability if stragglers == "transient" else 0.0,
        stall_factor=stall_factor if stragglers == "transient" else 1.0,
        slow_factors=slow_factors[: num_workers - 1] if stragglers == "persistent" else (),
        racks=racks,
        oversubscription=min(oversubscription, num_workers / racks) if racks > 1 else 1.0,
        exchange_share=share,
        nominal_bytes=round(_bytes_per_link(share, step_s, num_workers) * link),
        nic_bytes_per_s=round(link),
        link_changes=() if change is None else (LinkChange(at_share=round(0.3 + 0.4 * change_at, 3), factor=change),),
    )
    return _widened(drawn, axes) if wide else drawn


def _widened(drawn: Scenario, axes: _Axes) -> Scenario:
    """Draw the wide axes, too. A step has as many samples as drawn, in several passes where they are accumulated."""
    family = FAMILIES[drawn.family]
    accumulation, clip_norm = axes.one_of((1, 1, 1, 1, 2, 4)), axes.one_of((None, None, None, 0.5, 1.0, 2.0))
    leaps, leap_at = axes.one_of((False, False, False, True)), axes.place()
    frozen = axes.one_of((False, False, False, True))
    kind, change_at = axes.one_of((None, None, None, None, "lose", "join")), axes.place()
    workers_change = kind is not None and drawn.num_workers >= LEAST_FOR_CHANGES
    return replace(
        drawn,
        batch_size=max(LEAST_BATCH, drawn.batch_size // accumulation),
        accumulation=accumulation,
        clip_norm=None if family.sparse else clip_norm,
        leap_at_share=round(0.3 + 0.3 * leap_at, 3) if leaps else None,
        frozen=frozen and bool(family.backbone),
        worker_change=WorkerChange(at_share=round(0.1 + 0.4 * change_at, 3), kind=kind) if workers_change else None,
    )


def _exchange_share(stratum: int, place: float, *, size: int) -> float:
    """Place the fastest strata between 0.01 and `LITTLE`, the others between that and 10."""
    fast = FAST_STRATA * size // BLOCK
    if stratum < fast:
        return _between((stratum + place) / fast, 0.01, LITTLE)
    return _between((stratum - fast + place) / (size - fast), LITTLE, 10.0)


def _bytes_per_link(share: float, step_s: float, num_workers: int) -> float:
    """Bytes of the model, per byte per second of the link: a ring sends 2 (n - 1) / n of it over each."""
    return share * step_s * num_workers / (2 * (num_workers - 1))


def _link(place: float, *, share: float, step_s: float, num_workers: int) -> float:
    """Bytes per second, such that the nominal model is neither absurdly small nor absurdly large."""
    ratio = _bytes_per_link(share, step_s, num_workers)
    low, high = max(LEAST_BYTES_PER_S, LEAST_BYTES / ratio), min(MOST_BYTES_PER_S, MOST_BYTES / ratio)
    return _between(place, min(low, high), high)
