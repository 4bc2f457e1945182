"""The system side: the least slack that hides waiting and communicating, found by asking "what if" of measured steps.

Theory of operation. Every review brings, of each worker and step, the seconds that it computed and the seconds that it
stood still in an exchange. From these two things follow:

- the *transfer*: seconds of an exchange from the moment when the last worker has come. Whoever comes last waits for
  nobody, so the shortest time is the transfer (`core.trace.split_blocked`): of the times blocked where every step ends
  in an exchange, else of the times from a worker's beginning of an exchange until it was complete;
- the *pace* of each worker: seconds that a step takes it, or would take if it had an equal share of the round (in
  proportion to its samples), remembered for the last `SystemConfig.memory` steps.

The remembered steps are then run again, in thought, under every setting of a ladder of periods and delays (`what_if`).

The *choice* is the setting of the least slack among those that training can afford whose predicted time is within
``tolerance`` of the best of them. Slack is taken to cost a share of a step's progress (``price``), and more where local
steps make less of it than steps with the mean gradient (`noise`): what counts is the time over what is left of it. A
change must promise ``gain``; one that only gives slack back must promise nothing but is made when two reviews running
agree. For every time that a setting was left, up to `MOST_DOUBLINGS`, it must promise twice as much (at most half of a
step), or be wanted by twice as many reviews more than one, so that nothing swings between two that are about equal.

*Rounded* to 8 bits (`Sent.ROUNDED`), every setting without delay is there a second time. Until such an exchange has
been measured it is taken to last as much less as it has fewer bytes. What is sent in full comes first.

*In low rank* (`IN_LOW_RANK`) single workers may make strict steps, where that is fewer bytes than rounded. What is left
out comes late, so it is a setting of slack 1 with its price, and training must afford as much as on the store. It must
promise ``gain`` over the best of all else that can be afforded, and is left when something else is as fast. What
factoring takes is not known before it is tried; then it is in the measured exchange, during which it is done. Not where
the optimizer normalises: there it does a lasting harm that no trial sees (docs/log.md, section 41).

Slack: with period H and delay d a worker sees the others' steps H + d - 1 steps late at most; on the store and in low
rank 1 (`Setting`).

*Racks*, if there are several, bring a second ladder (`topology`). What counts as least is then the drift, which is the
slack where workers step by themselves; so of two settings of one slack that by racks comes first, and it is chosen
where it takes no more than `TopologyConfig.tolerance` longer than the best of all. Once chosen it is kept up to
``gain`` more. What goes between racks is rounded for a gain alone: a setting that does so must promise ``gain`` over
the best of all others that can be afforded, the store's too, and is left when one of these is as fast. So is it where
racks share the store, each as one worker: there what is hidden is that one rack is late now and then.

*Sparse gradients* make an exchange of gradients far smaller than one of parameters or with the store: until these have
been measured, they are taken to last as much longer as they send more (`sent_bytes`).

The *store* (`SystemConfig.store`) is considered where samples can be leased. Until it has been measured, an exchange
with it is taken to last as long as an all-reduce, since as many bytes go up to the shards and down from them; from then
on, what the lower quarter of its exchanges lasted, in which nobody was waited for. It must promise ``gain`` over the
best setting on the collective that can be afforded, and is left when that is as fast. There are no shares on it, but
the collective is compared with the shares that it would have.

*Shares* (`shares`) are for what slack cannot hide: workers that are slow for good.
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
"""Of a step: clocks have a resolution, and a step that took no time has a pace all the same."""
MOST_DOUBLINGS = 3
"""Of what a change must promise, for the times that its setting was left."""
LOCAL = Setting.of(period=2, delay=0)
"""Any by which single workers average parameters."""
SHARES_GAIN = 0.05
"""Share of the time of a step that other shares must promise to save: they cost training nothing."""


class SystemMonitor:
    """Remembers the workers' steps and chooses period, delay and shares.

    Args:
        config: Its parameters.
        topology: How racks are used; None for not at all.
    """

    __slots__ = (
        "_before",
        "_by_racks",
        "_can_push",
        "_config",
        "_counts_samples",
        "_ladder",
        "_less_wanted",
        "_normalises",
        "_pace_s",
        "_rack_transfers",
        "_racks",
        "_rounded_by_racks",
        "_sent",
        "_times_left",
        "_topology",
        "_transfer_s",
    )

    def __init__(self, config: SystemConfig, *, topology: TopologyConfig | None = None) -> None:
        self._config = config
        self._topology = topology
        self._ladder = ladder(config.largest_period, memory=math.inf, rounded=config.compress)
        self._by_racks: tuple[Setting, ...] = ()
        """The ladder of settings by racks; empty until an exchange of all has been measured that they improve on."""
        self._rounded_by_racks: tuple[Setting, ...] = ()
        """Those that round what goes between racks."""
        self._racks: WorkerRacks | None = None
        self._rack_transfers = RackTransfers()
        self._before: Setting | None = None
        """In force when the last reviews were taken in."""
        self._pace_s: dict[int, deque[float]] = {}
        """Of each worker, the seconds of its last steps, brought to equal shares."""
        self._transfer_s: dict[tuple[Kind, Sent], float] = {}
        """Of an exchange of each kind, by what is sent."""
        self._sent = SentBytes()
        self._less_wanted: tuple[Setting | None, int] = (None, 0)
        """A setting of less slack, and how many reviews running have wanted it."""
        self._times_left: Counter[Setting] = Counter()
        self._counts_samples = False
        """Whether samples are dealt in rounds; else there are no shares to change."""
        self._can_push = False
        self._normalises = False
        """Whether the optimizer divides by the gradients' size, as Adam does."""

    def observe(self, reviews: Mapping[int, Reviewed], *, setting: Setting) -> None:
        """Take in what the workers saw while ``setting`` was in force."""
        memory = max(math.inf if it.writes else 1 / (1 - min(it.momentum, 0.999)) for it in reviews.values())
        moments: MomentsKind = "mean" if all(review.shares_moments for review in reviews.values()) else "own"
        longest, rounded = self._config.largest_period, self._config.compress
        self._ladder = ladder(longest, memory=memory, rounded=rounded, moments=moments)
        self._counts_samples = all(sum(review.samples) > 0 for review in reviews.values())
        self._can_push = all(review.can_push for review in reviews.values())
        self._normalises = any(review.normalises for review in reviews.values())
        if setting.on_store:  # steps have nothing to do with each other there, but for their size
            usual = statistics.median(size for review in reviews.values() for size in review.samples)
            means = [usual] * max(len(review.samples) for review in reviews.values())
        else:
            means = [sum(sizes) / len(sizes) for sizes in zip(*(it.samples for it in reviews.values()), strict=True)]
        for worker, review in reviews.items():
            pace = self._pace_s.setdefault(worker, deque(maxlen=self._config.memory))
            ratios = to_equal_shares(review.samples, means)
            pace.extend([max(SHORTEST_S, s * r) for s, r in zip(review.compute_s, ratios, strict=True)])
        for worker in self._pace_s.keys() - reviews.keys():
            del self._pace_s[worker]
        self._sent = self._sent.seen(reviews)
        if self._topology is not None:
            self._racks = WorkerRacks.of(reviews)
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
        """Whether an exchange of all workers has been measured yet."""
        return bool(self._transfer_s)

    def transfer_s(self, setting: Setting) -> float:
        """Seconds of one exchange under ``setting``, as far as is known: by that which sends most nearly as much."""
        wanted = _kind(setting)
        kinds: tuple[Kind, ...] = (wanted, "gradients", "parameters", "store")
        for sent in sorted(Sent, key=lambda it: abs(it - setting.sent)):
            for kind in kinds:
                if (kind, sent) in self._transfer_s:
                    more = self._sent.ratio(wanted, setting.sent, to=kind, to_sent=sent)
                    return self._transfer_s[kind, sent] * more
        return 0.0

    def choose(
        self,
        *,
        allowance: Allowance,
        current: Setting,
        shares: Sequence[float],
        only: Setting | None = None,
    ) -> SystemChoice:
        """Period, delay and shares for the next steps.

        Args:
            allowance: What training can afford.
            current: What is in force.
            shares: In force; empty is equal shares.
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
        rounds = SYNCHRONOUS if current.on_store or (current.by_racks and self._racks is None) else current
        if new_shares != tuple(shares) and not self._worth(pace_s, shares, new_shares, rounds):
            new_shares = tuple(shares)
        compute_s = with_shares(pace_s, new_shares)
        settings = sorted((*self._ladder, *self._by_racks), key=self._rung) if self._by_racks else self._ladder
        low_rank = [IN_LOW_RANK] if current == IN_LOW_RANK or self._has_low_rank else []
        predicted = self._predict(compute_s, (*settings, *self._rounded_by_racks, *low_rank))
        affordable = [only] if only is not None else [one for one in settings if self._affords(allowance, one)]
        priced = self._priced(predicted, allowance)
        wanted = self._cheapest(affordable, priced, current=current)
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
        if setting != current:
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
        """The seconds in which each setting is taken to get as far as a step with the mean gradient does."""
        costs = {True: 1 - self._config.price, False: 1.0}
        return {it: time_s / (allowance.progress(it) * costs[it.slack > 0]) for it, time_s in predicted_s.items()}

    def _affords(self, allowance: Allowance, setting: Setting) -> bool:
        if setting.on_store or setting == IN_LOW_RANK:
            most = allowance.staleness
        else:
            most = allowance.drift if setting.by_racks else allowance.slack
        return self.drift(setting) <= most and allowance.bears(setting)

    def _is_better(self, wanted: Setting, current: Setting, predicted: Mapping[Setting, float]) -> bool:
        """Whether to change: for a gain, or for less slack if two reviews agree; more where it was left before."""
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
        """The figures behind a choice, by name."""
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
        """Seconds of a step under each of the settings on the collective."""
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
        """The slack of single workers that lets replicas drift as far apart as under ``setting``."""
        return setting.slack if self._racks is None else self._racks.drift(setting)

    @property
    def has_racks(self) -> bool:
        """Whether settings by racks are considered."""
        return self._racks is not None

    def slack_by_racks(self, drift: float) -> float:
        """The slack between racks that comes to so much drift; there must be racks."""
        assert self._racks is not None, "no racks"
        return self._racks.slack(drift)

    def _rung(self, setting: Setting) -> tuple[float, bool, int, Setting]:
        """Sorts settings: the least drift first; of equal drift those by racks, and of these that which sends least."""
        return self.drift(setting), not setting.by_racks, -setting.slack * setting.by_racks, setting

    def _cheapest(
        self, settings: Sequence[Setting], predicted: Mapping[Setting, float], *, current: Setting
    ) -> Setting:
        """Of the settings that are about as fast as the fastest of them, the first.

        Of settings by racks that drift alike, the first that is about as fast as the fastest of these.
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
        """Whether the store would gain enough over the best on the collective if nobody ever waited there."""
        if not self._has_store:
            return False
        least_s = float(pace_s.mean()) + self.transfer_s(ON_THE_STORE[0])
        return least_s <= best_s * (1 - self._config.gain)

    def _predict_racks_on_store(
        self, pace_s: NDArray[np.float64], *, current: Setting, best_s: float
    ) -> dict[Setting, float]:
        """Seconds of a step where racks share the store; none if that could not gain enough over the best of others."""
        assert self._racks is not None, "no racks"
        steps_s = self._rack_transfers.steps_s(pace_s, racks=self._racks)
        transfer_s = self._rack_transfers.with_store_s(flat_s=self.transfer_s(ON_THE_STORE[0]))
        least_s = float(steps_s.mean()) + transfer_s
        if current not in RACKS_ON_THE_STORE and not (self._has_store and least_s <= best_s * (1 - self._config.gain)):
            return {}
        return predict_steps_s(steps_s, transfer_s=lambda _: transfer_s, settings=RACKS_ON_THE_STORE)

    @property
    def _has_store(self) -> bool:
        """Whether the store is there to be gone to, and what it is compared with has been measured."""
        return self._config.store and self._counts_samples and self._can_push and self.knows_transfer

    @property
    def _has_low_rank(self) -> bool:
        """Whether sending in low rank is considered: it saves bytes, and what it is compared with has been measured."""
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
        """Of settings that are chosen for a gain alone the cheapest, if it is so much faster than the others' best."""
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
        """``[num_workers, num_steps]`` seconds of each worker's last steps at equal shares, as many as all have."""
        steps = min((len(pace) for pace in self._pace_s.values()), default=0)
        return np.array([list(self._pace_s[worker])[-steps:] if steps else [] for worker in sorted(self._pace_s)])


def _exchanges_apart(setting: Setting) -> tuple[bool, bool]:
    """What tells exchanges between racks, and those that are rounded there, from all others."""
    return setting.by_racks, setting.by_racks and setting.sent is Sent.ROUNDED


def _kind(setting: Setting) -> Kind:
    return "store" if setting.on_store else "gradients" if setting.steps_together else "parameters"
