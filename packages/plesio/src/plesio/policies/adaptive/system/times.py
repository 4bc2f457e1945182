"""Predicted seconds of a step under every setting, and the workers' shares, from measured steps that are run again.

Every review brings, by worker and step, the seconds of computing and the seconds of standing still in an exchange. Two
things follow:

- the *transfer*: seconds of an exchange from the moment when the last worker has come. The last worker waits for no
  other, so the shortest time is the transfer (`core.trace.split_blocked`): of the times blocked if every step ends in
  an exchange, else of the times from a worker's beginning of an exchange until it was complete;
- the *pace* of each worker: seconds of a step at an equal share of the round (in proportion to its samples), remembered
  for the last `MEMORY` steps.

The remembered steps are then simulated (`what_if`) under a ladder of periods and delays, full and rounded to 8 bits;
under the same ladder by racks, if there are several (`topology`); and under settings that must promise something before
they are simulated, or can be:

- the *store*, if samples can be leased and no waiting at all would save `STORE_GAIN`. Until it is measured, an exchange
  with it counts as long as an all-reduce, since as many bytes go up to the shards and down; after that, as the lower
  quarter of its exchanges, in which no worker was waited for. It has no shares, but the collective is compared with the
  shares that it would have;
- *low rank* (`IN_LOW_RANK`) under strict steps of single workers, if that is fewer bytes than rounding and the
  optimizer does not normalise: there it does a lasting harm that no trial shows (docs/log.md, section 41). The time of
  factoring is unknown before a trial; then it is part of the measured exchange.

Until an exchange is measured in some compression, its time follows from its share of the bytes. The same holds for
*sparse gradients*, whose exchange is far smaller than one of parameters or with the store (`sent_bytes`).

*Shares* (`shares`) answer persistent slowness, which slack cannot hide.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plesio.policies.adaptive.numbers import Options
from plesio.policies.adaptive.system.sent_bytes import Kind, SentBytes
from plesio.policies.adaptive.system.setting import (
    IN_LOW_RANK,
    ON_THE_STORE,
    RACKS_ON_THE_STORE,
    SYNCHRONOUS,
    Sent,
    Setting,
    ladder,
    settings_by_racks,
)
from plesio.policies.adaptive.system.shares import shares_by_pace, to_equal_shares, with_shares
from plesio.policies.adaptive.system.topology import RackTransfers, WorkerRacks, begun_under_this_setting
from plesio.policies.adaptive.system.transfers import each_step_s, now_and_then_s, with_store_s
from plesio.policies.adaptive.system.what_if import predict_steps_s
from plesio.policies.events import Reviewed
from plesio.policies.policy import MomentsKind

MEMORY = 32
"""Steps of each worker that are remembered; of as many, rare stalls are some."""
LARGEST_PERIOD = 32
"""Longest period that is simulated, in steps."""
STORE_GAIN = 0.1
"""Share of a step's time that the store must be able to save, so that it is simulated: that goes step by step."""
SHARES_GAIN = 0.05
"""Share of a step's time that other shares must promise to save; small, because shares cost training nothing."""
SHORTEST_S = 1e-9
"""Least seconds of a step: clocks have a resolution, and a step that took no time has a pace all the same."""
FEW_STEPS = 24
"""Steps of each worker, of which fewer may make a single slow one look like a habit."""
LONGEST = 8.0
"""Multiple of a worker's median step beyond which a step is extraordinary."""
OUTLIER = 2.0
"""Multiple of a worker's median step, from which a step is an outlier."""
FALLEN = 0.99
"""Share of its highest below which the learning rate counts as falling."""
LOCAL = Setting.of(period=2, delay=0)
"""Any setting under which single workers average parameters."""
BACKWARD = 2 / 3
"""Share of a step's computing that DDP's exchanges go behind: the backward pass."""


class SettingTimes:
    """Remembers the workers' steps and predicts their times."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ladder = ladder(LARGEST_PERIOD, memory=math.inf, rounded=options.compress)
        self._by_racks: tuple[Setting, ...] = ()
        """Settings by racks, full and rounded; empty until an exchange of all is measured, on which they must
        improve."""
        self._racks: WorkerRacks | None = None
        self._rack_transfers = RackTransfers()
        self._before: Setting | None = None
        """Setting in force at the last reviews."""
        self._pace_s: dict[int, deque[float]] = {}
        """Seconds of the last steps at equal shares, by worker."""
        self._transfer_s: dict[tuple[Kind, Sent], float] = {}
        """Seconds of an exchange, by its kind and compression."""
        self._wire_s: dict[Sent, float] = {}
        """Seconds on the wire of one of gradients, without its codec, by its compression."""
        self._sent = SentBytes()
        self._counts_samples = False
        """True if samples are dealt in rounds; else there are no shares to change."""
        self._can_push = False
        self._normalises = False
        self._highest_rate = 0.0

    def observe(self, reviews: Mapping[int, Reviewed], *, setting: Setting) -> None:
        """Take in the workers' steps under ``setting``."""
        self._counts_samples = all(sum(review.samples) > 0 for review in reviews.values())
        self._can_push = all(review.can_push for review in reviews.values())
        self._normalises = any(review.normalises for review in reviews.values())
        self._remember(reviews, on_store=setting.on_store)
        self._sent = self._sent.seen(reviews)
        if self._options.racks:
            self._racks = WorkerRacks.of(reviews)
        # exchanges of the setting before may end in these steps: their times belong to that setting
        if self._before is not None and _exchanges_apart(self._before) != _exchanges_apart(setting):
            reviews = begun_under_this_setting(reviews)
        self._before = setting
        if setting.by_racks:
            if self._racks is not None:  # else those that are left are of one rack, or rest
                self._rack_transfers.observe(reviews, racks=self._racks, setting=setting)
        else:
            kind = _kind(setting)
            seen = {"store": with_store_s, "gradients": each_step_s, "parameters": now_and_then_s}[kind](reviews)
            if seen:
                self._transfer_s[kind, setting.sent] = statistics.fmean(seen)
            if kind == "gradients" and (seen := now_and_then_s(reviews)):
                self._wire_s[setting.sent] = statistics.fmean(seen)
        self._lay_ladders(reviews)

    def _remember(self, reviews: Mapping[int, Reviewed], *, on_store: bool) -> None:
        # the pace is brought to equal shares, so that a change of shares does not change what is remembered
        if on_store:  # steps have nothing to do with each other there, but for their size
            usual = statistics.median(size for review in reviews.values() for size in review.samples)
            means = [usual] * max(len(review.samples) for review in reviews.values())
        else:
            means = [sum(sizes) / len(sizes) for sizes in zip(*(it.samples for it in reviews.values()), strict=True)]
        for worker, review in reviews.items():
            pace = self._pace_s.setdefault(worker, deque(maxlen=MEMORY))
            ratios = to_equal_shares(review.samples, means)
            pace.extend([max(SHORTEST_S, s * r) for s, r in zip(review.compute_s, ratios, strict=True)])
        # a worker that has left must not shorten the steps that all have in common
        for worker in self._pace_s.keys() - reviews.keys():
            del self._pace_s[worker]

    def _lay_ladders(self, reviews: Mapping[int, Reviewed]) -> None:
        moments: MomentsKind = "mean" if all(review.shares_moments for review in reviews.values()) else "own"
        memory = max(_memory(it, moments=moments) for it in reviews.values())
        self._ladder = ladder(
            LARGEST_PERIOD,
            memory=memory,
            rounded=self._options.compress,
            moments=moments,
            has_outer=self._may_have_outer(reviews),
        )
        self._by_racks = ()
        if self._racks is not None and self.knows_transfer:
            self._by_racks = settings_by_racks(LARGEST_PERIOD, moments=moments)
            if self._options.compress:
                self._by_racks += settings_by_racks(LARGEST_PERIOD, rounded=True, moments=moments)

    def _may_have_outer(self, reviews: Mapping[int, Reviewed]) -> bool:
        """Return True if an outer momentum does good: the run's beginning is over, and its learning rate falls.

        At a rate that stays as high as ever its longer steps end in more noise (docs/log.md, section 107).
        """
        rate = max(review.learning_rate for review in reviews.values())
        self._highest_rate = max(self._highest_rate, rate)
        begins = any(review.progress < self._options.begins for review in reviews.values())
        return rate < FALLEN * self._highest_rate and not begins and not any(it.writes for it in reviews.values())

    @property
    def knows_transfer(self) -> bool:
        """True if an exchange among all workers has been measured."""
        return bool(self._transfer_s)

    def drift(self, setting: Setting) -> float:
        """Return the slack of single workers under which replicas drift as far as under ``setting``."""
        return setting.slack if self._racks is None else self._racks.drift(setting)

    def predict(self, current: Setting, shares: Sequence[float]) -> tuple[dict[Setting, float], tuple[float, ...]]:
        """Return the seconds of a step by setting, and the shares for the next steps; no times if none is known."""
        pace_s = self._remembered_s()
        shares = tuple(shares) if len(shares) == len(pace_s) else ()  # some have left: of no use to the others
        if not pace_s.size:
            return {}, shares
        # shares must pay under the setting in force; the store has none, so there they are judged as under BSP
        rounds = SYNCHRONOUS if current.on_store or (current.by_racks and self._racks is None) else current
        if self._options.balance and self._counts_samples:
            new = shares_by_pace(pace_s, shares, gain=SHARES_GAIN)
            if new != shares and self._saves(pace_s, shares, new, rounds):
                shares = new
        low_rank = [IN_LOW_RANK] if current == IN_LOW_RANK or self._has_low_rank else []
        times_s = self._predict(with_shares(pace_s, shares), (*self._ladder, *self._by_racks, *low_rank))
        if current.on_store or self._store_may_gain(pace_s, best_s=times_s[SYNCHRONOUS]):
            times_s |= predict_steps_s(pace_s, transfer_s=self.transfer_s, settings=ON_THE_STORE)
        if self._by_racks:
            times_s |= self._predict_racks_on_store(pace_s, current=current, best_s=times_s[SYNCHRONOUS])
        if current not in times_s and current in RACKS_ON_THE_STORE:
            times_s = {current: times_s[SYNCHRONOUS]}  # racks rest, and those that work are too few to compare
        return times_s, shares

    def transfer_s(self, setting: Setting) -> float:
        """Return the seconds of an exchange under ``setting``, from the measured one that is nearest in compression.

        One in full has no codec, and where it is of gradients it counts without what the backward pass hides of it.
        """
        wanted = _kind(setting)
        kinds: tuple[Kind, ...] = (wanted, "gradients", "parameters", "store")
        for sent in sorted(Sent, key=lambda it: abs(it - setting.sent)):
            for kind in kinds:
                if (kind, sent) in self._transfer_s:
                    more = self._sent.ratio(wanted, setting.sent, to=kind, to_sent=sent)
                    if setting.sent is not Sent.FULL or kind != "gradients" or sent not in self._wire_s:
                        return self._transfer_s[kind, sent] * more
                    hidden_s = BACKWARD * float(self._remembered_s().mean()) if wanted == "gradients" else 0.0
                    return max(0.0, self._wire_s[sent] * more - hidden_s)
        return 0.0

    def _predict(self, compute_s: NDArray[np.float64], settings: Sequence[Setting]) -> dict[Setting, float]:
        flat = [setting for setting in settings if not setting.by_racks]
        predicted = predict_steps_s(compute_s, transfer_s=self.transfer_s, settings=flat)
        if self._racks is not None and len(flat) < len(settings):
            predicted |= self._rack_transfers.predict_steps_s(
                compute_s,
                racks=self._racks,
                settings=[setting for setting in settings if setting.by_racks],
                flat_s=self.transfer_s(LOCAL),
            )
        return predicted

    def _saves(
        self, pace_s: NDArray[np.float64], before: Sequence[float], after: Sequence[float], setting: Setting
    ) -> bool:
        times = [self._predict(with_shares(pace_s, shares), [setting])[setting] for shares in (before, after)]
        return times[1] <= times[0] * (1 - SHARES_GAIN)

    @property
    def _has_store(self) -> bool:
        """True if the store is available, and the time of an exchange to compare it with has been measured."""
        return self._options.store and self._counts_samples and self._can_push and self.knows_transfer

    def _store_may_gain(self, pace_s: NDArray[np.float64], *, best_s: float) -> bool:
        """Return True if the store would gain enough over the best on the collective without any waiting there."""
        if not self._has_store:
            return False
        least_s = float(pace_s.mean()) + self.transfer_s(ON_THE_STORE[0])
        return least_s <= best_s * (1 - STORE_GAIN)

    def _predict_racks_on_store(
        self, pace_s: NDArray[np.float64], *, current: Setting, best_s: float
    ) -> dict[Setting, float]:
        """Return seconds of a step of racks that share the store; empty if these cannot gain enough over ``best_s``."""
        assert self._racks is not None, "no racks"
        steps_s = self._rack_transfers.steps_s(pace_s, racks=self._racks)
        transfer_s = self._rack_transfers.with_store_s(flat_s=self.transfer_s(ON_THE_STORE[0]))
        least_s = float(steps_s.mean()) + transfer_s
        if current not in RACKS_ON_THE_STORE and not (self._has_store and least_s <= best_s * (1 - STORE_GAIN)):
            return {}
        return predict_steps_s(steps_s, transfer_s=lambda _: transfer_s, settings=RACKS_ON_THE_STORE)

    @property
    def _has_low_rank(self) -> bool:
        """True if sending in low rank saves bytes, and the time of an exchange to compare it with has been measured."""
        may = self._options.compress and not self._normalises
        return may and self._sent.saves_in_low_rank and self.knows_transfer

    def _remembered_s(self) -> NDArray[np.float64]:
        """Return ``[num_workers, num_steps]`` seconds of the last steps at equal shares, as many as all have."""
        steps = min((len(pace) for pace in self._pace_s.values()), default=0)
        pace_s = np.array([list(self._pace_s[worker])[-steps:] if steps else [] for worker in sorted(self._pace_s)])
        if not pace_s.size:
            return pace_s
        return _without_outliers(_without_chance(pace_s) if steps < FEW_STEPS else pace_s)


def _memory(review: Reviewed, *, moments: MomentsKind) -> float:
    """Return the steps that the optimizer's momentum averages over; the mean's never dies away, for it is met with."""
    lives_on = moments == "mean" and review.momentum > 0
    return math.inf if review.writes or lives_on else 1 / (1 - min(review.momentum, 0.999))


def _without_chance(pace_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the workers' steps, with the median in place of an extraordinary one if it is the only one of all."""
    usual_s = np.median(pace_s, axis=1, keepdims=True)
    extraordinary = pace_s > LONGEST * usual_s
    recurs = extraordinary.any(axis=0).sum() > 1
    return pace_s if recurs else np.where(extraordinary, usual_s, pace_s)


def _without_outliers(pace_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the workers' steps without as many outliers as chance may have added to them.

    Of k rare events the standard deviation is the root of k: so many of the longest count as usual steps.
    """
    usual_s = np.broadcast_to(np.median(pace_s, axis=1, keepdims=True), pace_s.shape)
    excess = np.where(pace_s > OUTLIER * usual_s, pace_s / usual_s, 0.0).ravel()
    longest = np.argsort(-excess)[: math.ceil(math.sqrt(np.count_nonzero(excess)))]
    kept = pace_s.ravel().copy()
    kept[longest] = usual_s.ravel()[longest]
    return kept.reshape(pace_s.shape)


def _exchanges_apart(setting: Setting) -> tuple[bool, bool, Sent]:
    """Return what separates exchanges whose times are not each other's: between racks, of gradients, in few bits."""
    return setting.by_racks, setting.steps_together, setting.sent


def _kind(setting: Setting) -> Kind:
    return "store" if setting.on_store else "gradients" if setting.steps_together else "parameters"
