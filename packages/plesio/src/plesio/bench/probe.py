"""`plesio lab probe`: latency and bandwidth of all pairs of hosts, measured so that no probe disturbs another.

Theory. Every host takes part, each as a rank of one job, and all follow the same schedule:

1. *Tournaments.* In a round every host talks to one other at most (the circle method of round-robin tournaments), so
   n-1 rounds hold all pairs (n if n is odd) and no two probes share a host. In the first, a pair sends one way and then
   the other, and racks follow from the bandwidths (`plesio.cost.topology.racks_of`). In two more, pairs meet in other
   company and all send both ways at once: racks that no pair notices by itself are suspected from these.
2. *Alone.* Pairs in different racks, and others that were slower than both their hosts are with someone else, once more
   and one at a time: what a pair has by itself.
3. *At once.* Of each rack as many pairs with other racks as there can be, at the same time: what the racks' uplinks
   carry, however many share them.

If what pairs have at once makes other racks, the third step is done again for those; if it makes none, or others again
and again, the hosts are one rack.

In a pair, latency is half the median of many round trips of 8 bytes. Bandwidth is that of messages which take about
`TARGET_S`, found by growing sizes. Each is acknowledged; the sender's clock times both, and the latency of both is
taken off. (A link that is shaped by a bucket of tokens lets through at once what it has saved up, so it seems a little
faster than it is in the long run.)

All of it goes over the job's own process group (Gloo, point to point): it opens no port of its own, binds to the
interface that leads to the job's meeting point, and measures the path that collectives take. All input is numbers.
"""

import math
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from multiprocessing.connection import Connection

import torch

from plesio.bench.process_pool import ProcessPool, enlisted
from plesio.core.errors import ConfigError, PlesioError, TransportError
from plesio.cost.probe import Probe
from plesio.cost.topology import RACK_FACTOR, PairMatrix, Rows, Topology, racks_of, slower_between
from plesio.cost.tournament import Pair, tournament
from plesio.runtime.job import Job
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.pair_link import FIRST_BYTES, MOST_BYTES, REPEATS, PairLink

SHARED_SEEDS = (0, 1)
SHARED_S = 0.03
"""Length of the tournaments in which all send both ways at once; and how long a message would take alone."""
SUSPICION = 1.2
"""How much slower ways must be among others for racks to be suspected, which the third step then shows or refutes."""
AT_ONCE_S = 0.1
MOST_ALONE = 64
"""Pairs that are measured alone; if there are more between the racks, a part of them stands for all."""
MOST_REGROUPINGS = 3
NAME_BYTES = 256

Racks = tuple[int, ...]
OnStep = Callable[[str, int, int], None]
"""Called with what is being measured, steps done, and steps in all as far as is known."""


def probe_here(place: WorkerPlace, *, on_step: OnStep = lambda what, done, total: None) -> Probe:
    """Measure, as one host of a job in which all hosts call this; the result is the same on all.

    Args:
        place: Place of this process in its job.
        on_step: Called on rank 0.

    Raises:
        ConfigError: There is one host, or several processes on some host of several.
        TransportError: The others cannot be reached, or one was lost.
    """
    if place.num_workers < 2:
        raise ConfigError("one host has nobody to probe; start 2 or more")
    if place.num_hosts > 1 and place.local_workers > 1:
        raise ConfigError(f"{place.local_workers} processes on a host; start one on each: torchrun --nproc-per-node 1")
    torch.set_num_threads(1)
    with Job(place) as job:
        try:
            return _Prober(job, on_step=on_step).run()
        except RuntimeError as error:  # Gloo's, which has no class of its own
            absent = job.start.missing()
            who = f"worker {', '.join(map(str, absent))} did not come" if absent else "a host was lost, or is too slow"
            reason = str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
            raise TransportError(f"the probe cannot go on: {who} ({reason})") from error


def probe_locally(num_workers: int, *, on_step: OnStep = lambda what, done, total: None) -> Probe:
    """Measure between processes of this machine, which are started for it.

    Raises:
        ConfigError: Fewer than two processes.
        PlesioError: The measurement failed.
    """
    if num_workers < 2:
        raise ConfigError(f"--workers {num_workers}: write 2 or more; one alone has nobody to probe")
    with ProcessPool(num_workers, serve_probe) as processes:
        processes.await_ready()
        probes: list[Probe] = []
        for rank, kind, value in processes.ask("probe"):
            match kind:
                case "step":
                    on_step(*value)
                case "done":
                    probes.append(value)
                case _:
                    raise PlesioError(f"worker {rank} ended with {value}" if kind == "ended" else value)
        return probes[0]


def serve_probe(environment: Mapping[str, str], commands: Connection) -> None:
    """Take part when told to, as the entry of a process of `probe_locally`.

    Args:
        environment: torchrun's variables.
        commands: Receives anything to begin and None to stop; sends ("ready", None), ("step", arguments of ``on_step``)
            on rank 0, then ("done", the probe) or ("failed", sentence).
    """
    with enlisted(environment):
        place = WorkerPlace.from_environment()
        assert place is not None
        try:
            commands.send(("ready", None))
            while commands.recv() is not None:
                try:
                    probe = probe_here(place, on_step=lambda *step: commands.send(("step", step)))
                    commands.send(("done", probe))
                except PlesioError as error:
                    commands.send(("failed", str(error)))
        except (KeyboardInterrupt, EOFError, BrokenPipeError):
            pass  # told to stop, or whoever asked is gone


class _Prober:
    """One host's part. All hosts call the same methods in the same order."""

    def __init__(self, job: Job, *, on_step: OnStep) -> None:
        self._place = job.place
        group = job.group("cpu")
        self._count, self._rank = group.size, group.rank
        self._link = PairLink(group)
        self._on_step = on_step
        self._done = 0
        self._total = (1 + len(SHARED_SEEDS)) * len(tournament(self._count))

    def run(self) -> Probe:
        self._link.meet()
        begun_s = time.monotonic()
        names = self._names()
        latencies, most = self._tournament()
        shared = torch.ones_like(most)
        for seed in SHARED_SEEDS:
            others, rates = self._tournament(known=most, seed=seed)
            latencies = torch.minimum(latencies, others)
            shared *= rates ** (1 / len(SHARED_SEEDS))

        def matrix(rates: torch.Tensor) -> PairMatrix:
            return PairMatrix(hosts=names, latency_s=_rows(latencies), bytes_per_s=_rows(rates))

        racks = self._agreed(partial(racks_of, matrix(most)))
        if max(racks) == 0:  # what only many at once slow down
            racks = self._agreed(partial(racks_of, matrix(shared), factor=SUSPICION))
        pairs = _sample(racks) + [ends for ends in _slow_ways(most) if racks[ends[0]] == racks[ends[1]]][:MOST_ALONE]
        self._alone(pairs, racks, most)
        clearer = self._agreed(partial(racks_of, matrix(most)))
        racks = clearer if max(clearer) > 0 else racks
        racks, at_once, uplinks = self._confirmed(racks, most, matrix=matrix)
        return Probe(
            topology=Topology(matrix=matrix(most), racks=racks, uplink_bytes_per_s=uplinks),
            contended_bytes_per_s=_rows(shared),
            num_at_once=at_once,
            num_alone=len(pairs),
            wall_s=time.monotonic() - begun_s,
        )

    def _names(self) -> tuple[str, ...]:
        """Host names, or addresses where those are not enough, or ranks."""
        texts = torch.zeros(self._count, NAME_BYTES, dtype=torch.int32)
        own = f"{socket.gethostname()}\n{self._place.own_address()}".encode()[:NAME_BYTES]
        texts[self._rank, : len(own)] = torch.tensor(list(own), dtype=torch.int32)
        rows = self._link.gathered(texts).tolist()
        both = [bytes(filter(None, row)).decode(errors="replace").split("\n") for row in rows]
        for names in zip(*both, strict=True):
            if len(set(names)) == self._count:
                return tuple(map(str, names))
        return tuple(f"worker {rank}" for rank in range(self._count))

    def _agreed(self, find: Callable[[], Racks]) -> Racks:
        """Return the findings of rank 0 everywhere: on another machine, a distance may differ in its last digit."""
        racks = find() if self._rank == 0 else (0,) * self._count
        return tuple(self._link.gathered(torch.tensor(racks)).tolist())

    def _confirmed(
        self, racks: Racks, rates: torch.Tensor, *, matrix: Callable[[torch.Tensor], PairMatrix]
    ) -> tuple[Racks, tuple[int, ...], tuple[float, ...]]:
        """Racks that are the same with what their pairs have at once; how many pairs that were; their uplinks."""
        one_rack = (0,) * self._count
        for _ in range(MOST_REGROUPINGS):
            if racks == one_rack:
                break
            at_once, uplinks = self._uplinks(racks, rates)
            shared = matrix(_shared(rates, racks, uplinks, at_once))
            found = self._agreed(partial(_regrouped, shared, racks))
            if found == racks:
                return racks, at_once, uplinks
            racks = found
        return one_rack, (0,), (math.inf,)

    def _step(self, what: str) -> None:
        if self._rank == 0:
            self._on_step(what, self._done, self._total)
        self._done += 1

    def _tournament(
        self, *, known: torch.Tensor | None = None, seed: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Measure every pair's latency and bandwidth, one way after the other or, with known bandwidths, both ways."""
        latencies, rates = torch.zeros(2, self._count, self._count, dtype=torch.float64)
        for number, pairs in enumerate(tournament(self._count, seed=seed)):
            self._step(f"round {number + 1}, {'each way' if known is None else 'both ways at once'}")
            own = next((pair for pair in pairs if self._rank in pair), None)
            peer = None if own is None else own[self._rank == own[0]]
            self._link.meet()
            if own is not None and peer is not None:
                latencies[self._rank, peer] = self._link.ping(peer, begins=self._rank == own[0])
            if known is None:
                self._measure(pairs, rates)
                self._measure([(two, one) for one, two in pairs], rates)
                continue
            self._link.meet()
            if peer is not None:
                sizes = (_size(float(known[ends]), SHARED_S) for ends in ((self._rank, peer), (peer, self._rank)))
                rates[peer, self._rank] = self._link.exchange_rate(peer, *sizes)
        return self._link.gathered(latencies), self._link.gathered(rates)

    def _measure(self, pairs: Sequence[Pair], rates: torch.Tensor) -> None:
        """Measure the bandwidth of these pairs, from the first to the second of each, all at the same time."""
        self._link.meet()
        for source, target in pairs:
            if self._rank == source:
                rates[source, target] = self._link.send_rate(target)
            elif self._rank == target:
                self._link.receive(source)

    def _alone(self, pairs: Sequence[Pair], racks: Sequence[int], rates: torch.Tensor) -> None:
        """Measure pairs one at a time, into ``rates``."""
        self._total += 2 * len(pairs)
        measured = torch.zeros_like(rates)
        for one, two in pairs:
            for ends in ((one, two), (two, one)):
                self._step(f"hosts {one} and {two} alone")
                self._measure([ends], measured)
        measured = self._link.gathered(measured)
        known: dict[Pair, list[float]] = defaultdict(list)
        for one, other in _between(racks):
            if measured[one, other] > 0:
                known[racks[one], racks[other]].append(float(measured[one, other]))
        for one, other in _between(racks):  # who was not measured has what others of the same racks have
            if measured[one, other] == 0:
                measured[one, other] = statistics.median(known[racks[one], racks[other]])
        torch.maximum(rates, measured, out=rates)

    def _uplinks(self, racks: Sequence[int], rates: torch.Tensor) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return how many pairs with others each rack was measured with at once, and the bandwidth of all together."""
        numbers, uplinks = [], []
        self._total += max(racks) + 1
        for rack in range(max(racks) + 1):
            self._step(f"rack {rack}, all at once")
            pairs = _at_once(racks, rack)
            sizes = {pair: _size(float(rates[pair]), AT_ONCE_S / len(pairs)) for pair in pairs}
            took = torch.zeros(REPEATS, self._count, dtype=torch.float64)
            for repeat in range(REPEATS):
                self._link.meet()
                for (source, target), size in sizes.items():
                    if self._rank == source:
                        took[repeat, source] = self._link.send_timed(target, size, repeats=1)
                        self._link.end(target)
                    elif self._rank == target:
                        self._link.receive(source)
            longest = self._link.gathered(took).max(dim=1).values
            numbers.append(len(pairs))
            uplinks.append(sum(sizes.values()) / float(longest.median()))
        return tuple(numbers), tuple(uplinks)


def _rows(values: torch.Tensor) -> Rows:
    return tuple(map(tuple, values.tolist()))


def _between(racks: Sequence[int]) -> list[Pair]:
    hosts = range(len(racks))
    return [(one, other) for one in hosts for other in hosts if racks[one] != racks[other]]


def _size(bytes_per_s: float, duration_s: float) -> int:
    """Return the bytes that take about so long, in what the buffers hold."""
    return max(FIRST_BYTES, min(MOST_BYTES, round(bytes_per_s * duration_s)))


def _slow_ways(rates: torch.Tensor) -> list[Pair]:
    """Return the pairs that are slower than both their hosts are with someone else, the slowest first."""
    slower = torch.minimum(rates, rates.T)
    best = slower.max(dim=1).values
    hosts = range(len(rates))
    ratios = {(one, two): float(slower[one, two] / min(best[one], best[two])) for two in hosts for one in range(two)}
    return sorted((pair for pair in ratios if ratios[pair] < 1 / RACK_FACTOR), key=lambda pair: ratios[pair])


def _regrouped(shared: PairMatrix, racks: Racks) -> Racks:
    """Find the racks by the bandwidth of pairs at once; one rack if the ways between are not slower."""
    return racks_of(shared) if slower_between(shared, racks) else (0,) * len(racks)


def _shared(
    rates: torch.Tensor, racks: Sequence[int], uplinks: Sequence[float], at_once: Sequence[int]
) -> torch.Tensor:
    """Return the bandwidth of pairs while as many as possible are on the way to other racks."""
    shared = rates.clone()
    for one, other in _between(racks):
        rack = racks[one]
        shared[one, other] = min(float(rates[one, other]), uplinks[rack] / at_once[rack])
    return shared


def _sample(racks: Sequence[int]) -> list[Pair]:
    """Return the pairs between racks: all, or so many between any two racks that every host is in one."""
    pairs = [(one, other) for one, other in _between(racks) if one < other]
    if len(pairs) <= MOST_ALONE:
        return pairs
    members = [[host for host, own in enumerate(racks) if own == rack] for rack in range(max(racks) + 1)]
    sample = set()
    for number, rack in enumerate(members):
        for other in members[:number]:
            for place in range(max(len(rack), len(other))):
                one, two = rack[place % len(rack)], other[place % len(other)]
                sample.add((min(one, two), max(one, two)))
    return sorted(sample)


def _at_once(racks: Sequence[int], rack: int) -> list[Pair]:
    """Return as many pairs from the rack to others as possible, no host in two, spread over the other racks."""
    sources = [host for host, own in enumerate(racks) if own == rack]
    others = [[host for host, own in enumerate(racks) if own == one] for one in range(max(racks) + 1) if one != rack]
    targets = [host for host in chain.from_iterable(zip_longest(*others)) if host is not None]
    return list(zip(sources, targets, strict=False))
