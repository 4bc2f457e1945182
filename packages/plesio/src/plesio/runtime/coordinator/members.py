"""The workers of a run: the live ones, the ones the policy counts, and the ones that speak for others.

If racks share a store, the lowest rank of a rack speaks for it: the policy counts no other worker of the rack, and
counts the first one's updates as the work of all of them.

A worker is lost when no message of it came for a lease. The lease follows the measured step time of the slowest worker
(`LEASE_STEPS` steps, within `MIN_LEASE_S` and `MAX_LEASE_S`): a constant would be too short for one model and too long
for another.

Invariant: a worker that is spoken for rests, and only while another one speaks for its rack.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from plesio.policies import Event, ExchangeKind
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.to_worker import MayLeave, ToWorker

Answers = Iterator[Event | Effect]
"""Answers of a part, in order. An event goes to the policy, whose decision is carried out before the part goes on."""
RunState = Literal["gathering", "running", "ended"]

FIRST_LEASE_S = 15.0
"""Lease before any step was measured: the first step may compile kernels and fill caches."""
MIN_LEASE_S = 2.0
MAX_LEASE_S = 60.0
LEASE_STEPS = 20


def lease_s(step_s: float) -> float:
    """Return the seconds of silence after which a worker is lost, for the slowest step time; 0 before any."""
    return FIRST_LEASE_S if step_s == 0.0 else min(MAX_LEASE_S, max(MIN_LEASE_S, LEASE_STEPS * step_s))


@dataclass(slots=True)
class Member:
    """One worker, as the coordinator keeps it; only this module assigns its fields."""

    seen_s: float
    """Time of its last message, from which its lease runs."""
    rack: int = 0
    num_workers: int = 1
    """Number of workers whose work its updates are."""
    clock: int = 0
    live: bool = True
    resting: bool = False
    left: bool = False
    """True once it has left the policy for good, or if it never joined it."""
    spoken_for: bool = False
    """True while another speaks for its rack, and rests for it too."""
    doomed: bool = False
    """True once another of its rack is lost."""
    leaving: bool = False
    left_s: float = 0.0
    """Time when it had trained all it would."""
    parted: bool = False
    """True once the others, which still train, go on without it."""
    answered: bool = False
    evaluates: bool = False
    """True for the one that evaluates, when all are leaving."""

    def seen(self, now_s: float, *, clock: int | None = None) -> None:
        """Renew its lease by a message, which may carry its clock."""
        self.seen_s = now_s
        self.clock = self.clock if clock is None else clock

    def go_on_from(self, clock: int) -> None:
        """Put it at the clock at which it is admitted, or from which all go on."""
        self.clock = clock

    def rest(self) -> None:
        self.resting = True

    def wake(self) -> None:
        self.resting = False

    def retire(self) -> None:
        """Take it out of the policy for good."""
        self.resting = self.left = True

    def rejoin(self) -> None:
        """Have it take part in the policy again, though its training was over."""
        self.resting = self.left = False

    def leave(self, now_s: float) -> None:
        self.leaving, self.left_s = True, now_s

    def take_back_leave(self) -> None:
        """Forget that its training was over: it reports so again in the next group."""
        self.leaving = False

    def part(self) -> bool:
        """Let the others go on without it; returns whether it still waits for `MayLeave`."""
        self.parted, unanswered = True, self.live and not self.answered
        self.answered = self.answered or unanswered
        return unanswered

    def doom(self) -> None:
        self.doomed = True


class Members(dict[int, Member]):
    """The workers that have come, by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.by_racks = False
        """True if one worker speaks for its rack."""
        self.state: RunState = "gathering"
        """State of the run: of its beginning all workers that it expects are there, at its end none lives."""

    @property
    def live(self) -> list[int]:
        """Workers that take part, in order of rank."""
        return sorted(worker for worker, member in self.items() if member.live)

    @property
    def training(self) -> list[int]:
        """Live workers that have not left, whether they speak for themselves or not."""
        return [worker for worker in self.live if self[worker].spoken_for or not self[worker].left]

    def is_live(self, worker: int) -> bool:
        """Tell whether messages of this worker count."""
        return worker in self and self[worker].live

    def known(self) -> dict[int, int]:
        """Return the live workers that have not left and speak, with the number of workers for which each one works."""
        return {
            worker: one.num_workers
            for worker, one in sorted(self.items())
            if one.live and not (one.left or one.spoken_for)
        }

    def begin(self) -> None:
        self.state = "running"

    def remove(self, worker: int) -> None:
        """Let a worker's messages count no more; without live workers the run is over."""
        self[worker].live = False
        self.state = self.state if self.live else "ended"

    def form_racks(self, workers: Iterable[int], *, joined: bool) -> dict[int, tuple[int, ...]]:
        """Have one worker of each rack speak for it from now on.

        ``joined``: the policy counts each of these workers already.

        Returns:
            All workers of its rack, for each worker.
        """
        self.by_racks = True
        racks: dict[int, list[int]] = defaultdict(list)
        for worker in workers:
            racks[self[worker].rack].append(worker)
        for leader, *others in racks.values():
            self[leader].num_workers += len(others)
            for other in others:
                self[other].resting = self[other].spoken_for = True
                self[other].left = self[other].left or not joined
        return {worker: tuple(rack) for rack in racks.values() for worker in rack}

    def dissolve_racks(self) -> None:
        self.by_racks = False
        for member in self.values():
            member.num_workers = 1
            if member.spoken_for:
                member.resting = member.left
            member.spoken_for = False

    def mates(self, worker: int) -> list[int]:
        """Return the live others of a worker's rack, which cannot go on without it; none once its training is over."""
        member = self[worker]
        if not self.by_racks or member.leaving:
            return []
        return [other for other in self.live if other != worker and self[other].rack == member.rack]

    def rack_of(self, worker: int) -> list[int]:
        """Return this worker and its live mates: first the one that speaks for all of them."""
        return sorted([worker, *self.mates(worker)], key=lambda one: (self[one].spoken_for, one))

    def tell_racks(self, speakers: Iterable[int], message: ToWorker) -> list[Effect]:
        """Tell each of these workers, and those for which it speaks."""
        return [Tell(worker=one, message=message) for speaker in speakers for one in self.rack_of(speaker)]

    def bound_to(self, worker: int, exchange: ExchangeKind) -> list[int]:
        """Return the live others that cannot go on without it while it trains: all in a collective, else its mates."""
        if exchange == "store" or self[worker].leaving:
            return self.mates(worker)
        return [other for other in self.live if other != worker]

    @property
    def ending(self) -> bool:
        """True if one worker's training is over, so that the others must end theirs."""
        return any(member.leaving and not member.parted for member in self.values())

    def all_doomed_but(self, *workers: int) -> bool:
        """Tell whether no other worker goes on."""
        return all(other in workers or self[other].doomed for other in self.live)

    def answer_leaving(self) -> list[Effect]:
        """Tell those whose training is over, and whether they evaluate.

        The one that evaluates is the lowest rank that is there, and is answered when all are leaving; the rest at once.
        """
        live = [worker for worker in self.live if not self[worker].parted]
        all_left = all(self[worker].leaving for worker in live)
        answers: list[Effect] = []
        for worker in live:
            member, evaluates = self[worker], worker == live[0]
            if member.leaving and not member.answered and (all_left or not evaluates):
                member.answered, member.evaluates = True, evaluates
                answers.append(Tell(worker=worker, message=MayLeave(evaluates=evaluates)))
        return answers

    def excuse(self, busy_s: float) -> None:
        """Lengthen all leases by the time in which the server took in no message."""
        for member in self.values():
            member.seen_s += busy_s

    def slowest_clock(self) -> int:
        """Return the least clock of the live workers that do not rest."""
        return min(member.clock for member in self.values() if member.live and not member.resting)

    def silent_since(self, moment_s: float) -> list[int]:
        """Return the live workers without a message since then."""
        return [worker for worker in self.live if self[worker].seen_s < moment_s]

    def validate(self) -> None:
        for worker, member in self.items():
            assert not member.spoken_for or (self.by_racks and member.resting), f"worker {worker} is spoken for"
