"""The system side: the least slack that hides waiting and communication, from measured steps that are simulated again.

Every review brings, by worker and step, the seconds of computing and the seconds of standing still in an exchange. Two
things follow:

- the *transfer*: seconds of an exchange from the moment when the last worker has come. The last worker waits for no
  other, so the shortest time is the transfer (`core.trace.split_blocked`): of the times blocked if every step ends in
  an exchange, else of the times from a worker's beginning of an exchange until it was complete;
- the *pace* of each worker: seconds of a step at an equal share of the round (in proportion to its samples), remembered
  for the last `SystemConfig.memory` steps.

The remembered steps are then simulated under every setting of a ladder of periods and delays (`what_if`).

*Choice.* Settings are compared by their *priced* time: the predicted time over the progress of a step, which is less by
``price`` if there is slack, and less still if local steps make less of it (`noise`). Among the settings that training
can afford the choice is the one of least slack whose priced time is within ``tolerance`` of the best. A change must
promise ``gain``. A change to less slack needs no gain, but the agreement of two reviews in succession. For each time
that the wanted setting was left, up to `MOST_DOUBLINGS`, the gain doubles (to at most half of a step) or the reviews
needed beyond the first do, so that nothing swings between two equal settings.

Some settings are chosen *for a gain* alone: they must promise ``gain`` over the best of the others that can be
afforded, and are left when one of these is as fast:

- the *store* (`SystemConfig.store`), if samples can be leased. Until it is measured, an exchange with it counts as long
  as an all-reduce, since as many bytes go up to the shards and down; after that, as the lower quarter of its exchanges,
  in which no worker was waited for. It has no shares, but the collective is compared with the shares that it would
  have;
- *rounding between racks*, and racks that share the store as one worker each, which hides an occasional late rack;
- *low rank* (`IN_LOW_RANK`) under strict steps of single workers, if that is fewer bytes than rounding. The rest comes
  late, so training must afford as much as on the store. The time of factoring is unknown before a trial; then it is
  part of the measured exchange. It is excluded if the optimizer normalises: there it does a lasting harm that no trial
  shows (docs/log.md, section 41).

*Rounded* to 8 bits (`Sent.ROUNDED`), every setting without delay is on the ladder a second time, after the full one.
Until such an exchange is measured, its time follows from its share of the bytes. The same holds for *sparse gradients*,
whose exchange is far smaller than one of parameters or with the store (`sent_bytes`).

*Racks*, if there are several, bring a second ladder (`topology`). Least then means least drift, which is the slack if
workers step by themselves. If two settings have one drift, that by racks comes first; it is chosen if it takes no more
than `TopologyConfig.tolerance` longer than the best of all, and then kept up to ``gain`` more.

*Shares* (`shares`) answer persistent slowness, which slack cannot hide.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plesio.policies.adaptive.config.system import SystemConfig, TopologyConfig
from plesio.policies.adaptive.system.choice import Allowance, SystemChoice
from plesio.policies.adaptive.system.reason import reason_of
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

__all__ = ["SystemMonitor"]

NOT_MEASURED = " (no exchange has been measured yet)"
SHORTEST_S = 1e-9
"""Least seconds of a step: clocks have a resolution, and a step that took no time has a pace all the same."""
FEW_STEPS = 24
"""Steps of each worker, of which fewer may make a single slow one look like a habit."""
LONGEST = 8.0
"""Multiple of a worker's median step beyond which a step is extraordinary."""
MOST_DOUBLINGS = 3
"""Most doublings of the gain that a change must promise, one for each time that its setting was left."""
LOCAL = Setting.of(period=2, delay=0)
"""Any setting under which single workers average parameters."""
SHARES_GAIN = 0.05
"""Share of a step's time that other shares must promise to save; small, because shares cost training nothing."""


class SystemMonitor:
    """Remembers the workers' steps and chooses period, delay and shares; ``topology`` is None to ignore racks."""

    def __init__(self, config: SystemConfig, *, topology: TopologyConfig | None = None) -> None:
        self._config = config
        self._topology = topology
        self._ladder = ladder(config.largest_period, memory=math.inf, rounded=config.compress)
        self._by_racks: tuple[Setting, ...] = ()
        """Ladder of settings by racks; empty until an exchange of all is measured, on which they must improve."""
        self._rounded_by_racks: tuple[Setting, ...] = ()
        """Ladder of settings that round exchanges between racks."""
        self._racks: WorkerRacks | None = None
        self._rack_transfers = RackTransfers()
        self._before: Setting | None = None
        """Setting in force at the last reviews."""
        self._pace_s: dict[int, deque[float]] = {}
        """Seconds of the last steps at equal shares, by worker."""
        self._transfer_s: dict[tuple[Kind, Sent], float] = {}
        """Seconds of an exchange, by its kind and compression."""
        self._sent = SentBytes()
        self._less_wanted: tuple[Setting | None, int] = (None, 0)
        """A setting of less slack, and the number of successive reviews that wanted it."""
        self._times_left: Counter[Setting] = Counter()
        self._spent_s = 0.0
        """Seconds of all steps so far."""
        self._counts_samples = False
        """True if samples are dealt in rounds; else there are no shares to change."""
        self._can_push = False
        self._normalises = False
        """True if the optimizer divides by the gradients' size, as Adam does, or may do so."""

    def observe(self, reviews: Mapping[int, Reviewed], *, setting: Setting) -> None:
        memory = max(math.inf if it.writes else 1 / (1 - min(it.momentum, 0.999)) for it in reviews.values())
        moments: MomentsKind = "mean" if all(review.shares_moments for review in reviews.values()) else "own"
        longest, rounded = self._config.largest_period, self._config.compress
        self._ladder = ladder(longest, memory=memory, rounded=rounded, moments=moments)
        self._counts_samples = all(sum(review.samples) > 0 for review in reviews.values())
        self._can_push = all(review.can_push for review in reviews.values())
        self._normalises = any(review.normalises for review in reviews.values())
        # the pace is brought to equal shares, so that a change of shares does not change what is remembered
        if setting.on_store:  # steps have nothing to do with each other there, but for their size
            usual = statistics.median(size for review in reviews.values() for size in review.samples)
            means = [usual] * max(len(review.samples) for review in reviews.values())
        else:
            means = [sum(sizes) / len(sizes) for sizes in zip(*(it.samples for it in reviews.values()), strict=True)]
        for worker, review in reviews.items():
            self._spent_s += (sum(review.compute_s) + sum(review.blocked_s)) / len(reviews)
            pace = self._pace_s.setdefault(worker, deque(maxlen=self._config.memory))
            ratios = to_equal_shares(review.samples, means)
            pace.extend([max(SHORTEST_S, s * r) for s, r in zip(review.compute_s, ratios, strict=True)])
        # a worker that has left must not shorten the steps that all have in common
        for worker in self._pace_s.keys() - reviews.keys():
            del self._pace_s[worker]
        self._sent = self._sent.seen(reviews)
        if self._topology is not None:
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
        self._by_racks = self._rounded_by_racks = ()
        if self._topology is not None and self._racks is not None and self.knows_transfer:
            self._by_racks = settings_by_racks(self._topology.largest_period, moments=moments)
            if self._config.compress:
                self._rounded_by_racks = settings_by_racks(self._topology.largest_period, rounded=True, moments=moments)

    @property
    def knows_transfer(self) -> bool:
        return bool(self._transfer_s)

    def transfer_s(self, setting: Setting) -> float:
        """Return the seconds of an exchange under ``setting``, from the measured one that is nearest in compression."""
        wanted = _kind(setting)
        kinds: tuple[Kind, ...] = (wanted, "gradients", "parameters", "store")
        for sent in sorted(Sent, key=lambda it: abs(it - setting.sent)):
            for kind in kinds:
                if (kind, sent) in self._transfer_s:
                    more = self._sent.ratio(wanted, setting.sent, to=kind, to_sent=sent)
                    return self._transfer_s[kind, sent] * more
        return 0.0

    def spent(self, allowance: Allowance, *, steps: float) -> float:
        """Return the seconds so far over those of so many steps of the fastest setting that is afforded.

        Settings that are chosen for a gain alone do not count; 0 if no exchange has been measured.
        """
        if not self.knows_transfer or not steps:
            return 0.0
        settings = [one for one in (*self._ladder, *self._by_racks) if self._affords(allowance, one)]
        return self._spent_s / (steps * min(self._predict(self._remembered_s(), settings).values()))

    def choose(
        self,
        *,
        allowance: Allowance,
        current: Setting,
        shares: Sequence[float],
        only: Setting | None = None,
    ) -> SystemChoice:
        """Choose period, delay and shares for the next steps.

        Args:
            allowance: The allowance of training.
            current: The setting in force.
            shares: Shares in force; empty for equal shares.
            only: The setting on the collective to go on with, whatever it saves; None lets all be compared.
        """
        pace_s = self._remembered_s()
        shares = shares if len(shares) == len(pace_s) else ()  # some have left: they are of no use to the others
        balances = self._config.balance and self._counts_samples
        new_shares = shares_by_pace(pace_s, shares, gain=SHARES_GAIN) if balances else tuple(shares)
        if not pace_s.size:
            return SystemChoice(
                setting=SYNCHRONOUS,
                least=SYNCHRONOUS,
                shares=tuple(shares),
                reason="nothing is measured yet",
                inputs=(),
            )
        if only is None and current in RACKS_ON_THE_STORE and self._racks is None:
            reason = "racks rest, and those that work are too few to compare"
            return SystemChoice(setting=current, least=current, shares=(), reason=reason, inputs=())
        # shares must pay under the setting in force; the store has none, so there they are judged as under BSP
        rounds = SYNCHRONOUS if current.on_store or (current.by_racks and self._racks is None) else current
        if new_shares != tuple(shares) and not self._worth(pace_s, shares, new_shares, rounds):
            new_shares = tuple(shares)
        # first the settings that need no gain over others: the two ladders, least drift first
        compute_s = with_shares(pace_s, new_shares)
        settings = sorted((*self._ladder, *self._by_racks), key=self._rung) if self._by_racks else self._ladder
        low_rank = [IN_LOW_RANK] if current == IN_LOW_RANK or self._has_low_rank else []
        predicted = self._predict(compute_s, (*settings, *self._rounded_by_racks, *low_rank))
        affordable = [only] if only is not None else [one for one in settings if self._affords(allowance, one)]
        priced = self._priced(predicted, allowance)
        wanted = self._cheapest(affordable, priced, current=current)
        # then those that are chosen for a gain alone, each against the best of all before it; the store is simulated
        # only if it could gain, because its simulation goes step by step
        if current.on_store or (only is None and self._store_may_gain(pace_s, best_s=priced[wanted])):
            predicted |= predict_steps_s(pace_s, transfer_s=self.transfer_s, settings=ON_THE_STORE)
            priced = self._priced(predicted, allowance)
        if only is None and ON_THE_STORE[0] in priced:
            best_s = priced[wanted]
            wanted = self._for_a_gain(ON_THE_STORE, priced, allowance, current=current, best_s=best_s) or wanted
        if only is None and self._by_racks:
            best_s = min(priced[one] for one in (*affordable, wanted))
            rounded = sorted(self._rounded_by_racks, key=self._rung)
            wanted = self._for_a_gain(rounded, priced, allowance, current=current, best_s=best_s) or wanted
            best_s = min(best_s, priced[wanted])
            predicted |= (sharing := self._predict_racks_on_store(pace_s, current=current, best_s=best_s))
            priced = self._priced(predicted, allowance)
            wanted = self._for_a_gain(tuple(sharing), priced, allowance, current=current, best_s=best_s) or wanted
        if only is None:
            best_s = min(priced[one] for one in (*affordable, wanted))
            wanted = self._for_a_gain(low_rank, priced, allowance, current=current, best_s=best_s) or wanted
        # with the step sizes that fit the optimizer; what a run begins with may be none of the ladder's
        known = (*settings, *self._rounded_by_racks, *low_rank)
        setting = current if current.on_store else next((one for one in known if one == current), wanted)
        if only is not None or not self._affords(allowance, current) or self._is_better(wanted, current, priced):
            setting = wanted
        if setting != current:  # whatever the reason: coming back must promise more each time
            self._times_left[current] += 1
            self._less_wanted = (None, 0)
        return SystemChoice(
            setting=setting,
            least=self._cheapest(settings, priced, current=current),
            shares=() if setting.on_store else new_shares,
            reason=reason_of(setting, predicted, priced=priced, affordable=affordable)
            + ("" if self.knows_transfer else NOT_MEASURED),
            inputs=tuple(self._inputs(setting, predicted, before=current, compute_s=compute_s).items()),
        )

    def _priced(self, predicted_s: Mapping[Setting, float], allowance: Allowance) -> dict[Setting, float]:
        """Return the seconds in which each setting gets as far as a step with the mean gradient does."""
        costs = {True: 1 - self._config.price, False: 1.0}
        return {it: time_s / (allowance.progress(it) * costs[it.slack > 0]) for it, time_s in predicted_s.items()}

    def _affords(self, allowance: Allowance, setting: Setting) -> bool:
        if setting.on_store or setting == IN_LOW_RANK:
            most = allowance.staleness
        else:
            most = allowance.drift if setting.by_racks else allowance.slack
        return self.drift(setting) <= most and allowance.bears(setting)

    def _is_better(self, wanted: Setting, current: Setting, predicted: Mapping[Setting, float]) -> bool:
        """Return True for a gain, or for less slack if enough reviews agree; both are more if it was left before."""
        if not self.knows_transfer:
            return False
        if wanted == current:
            self._less_wanted = (None, 0)
            return False
        less = self._rung(wanted) < self._rung(current)
        times = min(self._times_left[wanted], MOST_DOUBLINGS)
        needed = 1 - min(0.5, self._config.gain * 2 ** (0 if less else times))
        if predicted[wanted] <= predicted.get(current, predicted[wanted]) * needed:
            return True
        before, agreed = self._less_wanted
        self._less_wanted = (wanted, agreed + 1 if before == wanted else 1) if less else (None, 0)
        return bool(self._less_wanted[1] > 2**times)

    def _inputs(
        self,
        setting: Setting,
        predicted: Mapping[Setting, float],
        *,
        before: Setting,
        compute_s: NDArray[np.float64],
    ) -> dict[str, float]:
        inputs = {
            "system.bsp_step_s": predicted[SYNCHRONOUS],
            "system.step_s": predicted[setting],
            "system.before_step_s": predicted.get(before, predicted[SYNCHRONOUS]),
            "system.least_step_s": min(predicted.values()),
            "system.transfer_s": self.transfer_s(setting),
            "system.compute_s": float(compute_s.mean(axis=1).max()),
        }
        if IN_LOW_RANK in predicted:
            inputs["system.low_rank_step_s"] = predicted[IN_LOW_RANK]
        if self._racks is not None:
            inputs["topology.workers_a_rack"] = self._racks.slack(1)
            for name, ladder_by_racks in (("step_s", self._by_racks), ("rounded_step_s", self._rounded_by_racks)):
                if ladder_by_racks:
                    inputs[f"topology.{name}"] = min(predicted[one] for one in ladder_by_racks)
            if RACKS_ON_THE_STORE[0] in predicted:
                inputs["topology.store_step_s"] = min(predicted[one] for one in RACKS_ON_THE_STORE)
            inputs["topology.drift"] = float(self.drift(setting))
            inputs |= self._rack_transfers.inputs
        return inputs

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

    def drift(self, setting: Setting) -> float:
        """Return the slack of single workers under which replicas drift as far as under ``setting``."""
        return setting.slack if self._racks is None else self._racks.drift(setting)

    @property
    def has_racks(self) -> bool:
        return self._racks is not None

    def slack_by_racks(self, drift: float) -> float:
        assert self._racks is not None, "no racks"
        return self._racks.slack(drift)

    def _rung(self, setting: Setting) -> tuple[float, bool, int, Setting]:
        """Return a sort key: least drift first; at equal drift by racks first, and of these the most slack."""
        return self.drift(setting), not setting.by_racks, -setting.slack * setting.by_racks, setting

    def _cheapest(
        self, settings: Sequence[Setting], predicted: Mapping[Setting, float], *, current: Setting
    ) -> Setting:
        """Return the first of the settings that are about as fast as the fastest of them.

        If that is by racks, return the first that is about as fast as the fastest of those that drift alike.
        """
        best_s = min(predicted[setting] for setting in settings)
        most_s = by_racks_s = best_s * (1 + self._config.tolerance)
        if self._topology is not None:
            by_racks_s = best_s * (1 + self._topology.tolerance + current.by_racks * self._config.gain)
        first = next(it for it in settings if predicted[it] <= (by_racks_s if it.by_racks else most_s))
        if not first.by_racks:
            return first
        alike = [it for it in settings if it.by_racks and self.drift(it) == self.drift(first)]
        most_s = min(predicted[it] for it in alike) * (1 + self._config.tolerance)
        return next(it for it in alike if predicted[it] <= most_s)

    def _store_may_gain(self, pace_s: NDArray[np.float64], *, best_s: float) -> bool:
        """Return True if the store would gain enough over the best on the collective without any waiting there."""
        if not self._has_store:
            return False
        least_s = float(pace_s.mean()) + self.transfer_s(ON_THE_STORE[0])
        return least_s <= best_s * (1 - self._config.gain)

    def _predict_racks_on_store(
        self, pace_s: NDArray[np.float64], *, current: Setting, best_s: float
    ) -> dict[Setting, float]:
        """Return seconds of a step of racks that share the store; empty if these cannot gain enough over ``best_s``."""
        assert self._racks is not None, "no racks"
        steps_s = self._rack_transfers.steps_s(pace_s, racks=self._racks)
        transfer_s = self._rack_transfers.with_store_s(flat_s=self.transfer_s(ON_THE_STORE[0]))
        least_s = float(steps_s.mean()) + transfer_s
        if current not in RACKS_ON_THE_STORE and not (self._has_store and least_s <= best_s * (1 - self._config.gain)):
            return {}
        return predict_steps_s(steps_s, transfer_s=lambda _: transfer_s, settings=RACKS_ON_THE_STORE)

    @property
    def _has_store(self) -> bool:
        """True if the store is available, and the time of an exchange to compare it with has been measured."""
        return self._config.store and self._counts_samples and self._can_push and self.knows_transfer

    @property
    def _has_low_rank(self) -> bool:
        """True if sending in low rank saves bytes, and the time of an exchange to compare it with has been measured."""
        may = self._config.compress and not self._normalises
        return may and self._sent.saves_in_low_rank and self.knows_transfer

    def _for_a_gain(
        self,
        settings: Sequence[Setting],
        predicted: Mapping[Setting, float],
        allowance: Allowance,
        *,
        current: Setting,
        best_s: float,
    ) -> Setting | None:
        """Return the cheapest of settings that are chosen for a gain alone, if its gain over ``best_s`` is enough."""
        affordable = [setting for setting in settings if self._affords(allowance, setting)]
        if not affordable:
            return None
        cheapest = self._cheapest(affordable, predicted, current=current)
        most_s = best_s * (1 if current in settings else 1 - self._config.gain)
        return cheapest if predicted[cheapest] <= most_s else None

    def _worth(
        self, pace_s: NDArray[np.float64], before: Sequence[float], after: Sequence[float], setting: Setting
    ) -> bool:
        times = [self._predict(with_shares(pace_s, shares), [setting])[setting] for shares in (before, after)]
        return times[1] <= times[0] * (1 - SHARES_GAIN)

    def _remembered_s(self) -> NDArray[np.float64]:
        """Return ``[num_workers, num_steps]`` seconds of the last steps at equal shares, as many as all have.

        Of few steps a single one that took very long does not decide.
        """
        steps = min((len(pace) for pace in self._pace_s.values()), default=0)
        pace_s = np.array([list(self._pace_s[worker])[-steps:] if steps else [] for worker in sorted(self._pace_s)])
        return _without_chance(pace_s) if 0 < steps < FEW_STEPS else pace_s


def _without_chance(pace_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the workers' steps, with the median in place of an extraordinary one if it is the only one of all."""
    usual_s = np.median(pace_s, axis=1, keepdims=True)
    extraordinary = pace_s > LONGEST * usual_s
    recurs = extraordinary.any(axis=0).sum() > 1
    return pace_s if recurs else np.where(extraordinary, usual_s, pace_s)


def _exchanges_apart(setting: Setting) -> tuple[bool, bool]:
    """Return flags that separate exchanges between racks, and the rounded ones of them, from all others."""
    return setting.by_racks, setting.by_racks and setting.sent is Sent.ROUNDED


def _kind(setting: Setting) -> Kind:
    return "store" if setting.on_store else "gradients" if setting.steps_together else "parameters"
