"""What becomes of a grid's run: the stages' weights put together and evaluated, and all workers' figures.

One worker collects: the first stage of the first group that is there. The others send it their states and figures when
they are done, and wait for the result. The network is the mean over the groups.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from plesio.core.errors import WorkerLostError
from plesio.core.records import Record, from_values, to_values
from plesio.core.results import Evaluation, RunResult, RunStatus, Staleness, write_results
from plesio.policies.grid import GridSetting
from plesio.protocol.figures import Report, RunInfo
from plesio.runtime.coordinator.ledger import Ledger, World
from plesio.runtime.grid.formation import Formation
from plesio.runtime.grid.messages import Incoming, Outgoing, PeerFailedError
from plesio.runtime.worker.exchange.links import Links, PeerGoneError
from plesio.runtime.worker.judge import evaluation_mode
from plesio.runtime.worker.machine import environment
from plesio.runtime.worker.peer_watch import Watch

__all__ = ["Books", "Collector", "Figures", "Network", "Shot", "as_figures", "as_tensor", "state_of"]

_STATE_TAG, _RESULT_TAG = 4, 5

State = dict[str, Tensor]
T = TypeVar("T")


class Figures(Record, frozen=True, kw_only=True):
    """What one worker tells the collector.

    Attributes:
        rank: Whose.
        report: Its totals and losses.
        staleness: How many updates had which.
        shots: Samples of all workers and seconds of training at each snapshot.
    """

    rank: int
    report: Report
    staleness: list[tuple[int, int]]
    shots: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Shot:
    """A stage's state after ``samples`` samples of all groups, ``at_s`` seconds of training after the first step.

    Attributes:
        samples: Those that count.
        at_s: When.
        tensors: The state; empty of a worker that was not there yet.
        dealt: Samples that were given out, lost ones among them: alike on all workers.
    """

    samples: int
    at_s: float
    tensors: list[Tensor]
    dealt: int


class Network:
    """The whole network, of which every worker has the layers and the collector the use.

    Args:
        layers: All of them.
        stages: Their parts.
        ends: After how many layers each but the last ends.
    """

    def __init__(self, layers: nn.Sequential, stages: Sequence[nn.Module], *, ends: Sequence[int]) -> None:
        self.layers = layers
        self.ends = tuple(ends)
        self._names = [list(_named(stage)) for stage in stages]

    @contextmanager
    def loaded(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """With ``state`` in the layers, in evaluation mode and without gradients; afterwards all is as before."""
        own = _named(self.layers)
        before = {name: tensor.detach().clone() for name, tensor in own.items()}
        self._write(own, state)
        try:
            with evaluation_mode(self.layers):
                yield
        finally:
            self._write(own, before)

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Have ``state`` in the layers for good."""
        self._write(_named(self.layers), state)

    @torch.no_grad()
    def _write(self, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def whole(self, states: Mapping[int, Sequence[Tensor]], setting: GridSetting) -> tuple[State, float]:
        """One state of those of all workers, by rank: the mean over the groups; and their distance from it.

        A group that was not there yet as a whole, some of whose stages have an empty state, does not count.

        Returns:
            The state, and the mean over the groups of the squared distance of their parameters and floating-point
            buffers from the mean's.
        """
        partial = {rank // setting.stages for rank, tensors in states.items() if not tensors}
        groups = sorted({rank // setting.stages for rank in states} - partial)
        state: State = {}
        distance = 0.0
        for stage, names in enumerate(self._names):
            for place, name in enumerate(names):
                copies = [states[group * setting.stages + stage][place] for group in groups]
                if len(copies) == 1 or not copies[0].is_floating_point():
                    state[name] = copies[0].clone()
                    continue
                stacked = torch.stack(copies)
                state[name] = stacked.mean(0)
                distance += float((stacked - state[name]).square().sum()) / len(groups)
        return state, distance

    def as_state_dict(self, state: State) -> State:
        """What the network's own `state_dict` names: shared weights under each name, no buffers that are not kept."""
        names = {id(tensor): name for name, tensor in _named(self.layers).items()}
        own = self.layers.state_dict(keep_vars=True)
        return {name: state[names[id(tensor)]] for name, tensor in own.items() if id(tensor) in names}

    def sha256(self, state: Mapping[str, Tensor]) -> str:
        """Over the bytes of what is trained, in name order."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.layers.named_parameters()):
            if parameter.requires_grad:
                digest.update(name.encode())
                digest.update(state[name].contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def state_of(stage: nn.Module) -> list[Tensor]:
    """A copy of a stage's parameters and buffers."""
    return [tensor.detach().clone() for tensor in _named(stage).values()]


@dataclass(slots=True)
class Collector:
    """One worker's side of putting things together.

    Attributes:
        links: To the others; None for a worker by itself.
        rank: This worker's.
        formation: The groups that are there.
        watch: Notices workers that have stopped.
        lost: Groups that are gone, as far as is known.
        known: Ranks of all that have been there.
        num_gathered: How often all have told something.
    """

    links: Links | None
    rank: int
    formation: Formation
    watch: Watch
    lost: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    num_gathered: int = 0

    def __post_init__(self) -> None:
        self.known.update(self.formation.workers)

    def regrouped(self, formation: Formation, links: Links | None, watch: Watch) -> None:
        """Others are there from now on."""
        self.formation, self.links, self.watch = formation, links, watch
        self.known.update(formation.workers)

    @property
    def collects(self) -> bool:
        """Whether this worker is the one."""
        return self.rank == self._first * self._stages

    @property
    def _first(self) -> int:
        """Of the groups that are there; the first of all if none is."""
        groups = self.formation.groups
        return next((group for group in groups if group not in self.lost), groups[0])

    @property
    def there(self) -> list[int]:
        """The ranks of groups that are not known to be gone."""
        return [rank for rank in self.formation.workers if self._is_there(rank)]

    @property
    def _stages(self) -> int:
        return self.formation.setting.stages

    def _is_there(self, rank: int) -> bool:
        return rank // self._stages not in self.lost

    def lose(self, group: int) -> None:
        """A group is gone.

        Raises:
            WorkerLostError: It is rather this worker that the others have given up.
        """
        if self.watch.doubtful:
            raise WorkerLostError.expelled(self.rank)
        self.lost.add(group)

    def retried(self, action: Callable[[], T]) -> T:
        """What ``action`` comes to, begun anew by all that are there if the one that collects turns out to be gone.

        Raises:
            PeerGoneError: It was of this worker's own group.
        """
        begun = self.num_gathered
        while True:
            self.num_gathered = begun
            first = self._first
            try:
                return action()
            except PeerGoneError as gone:
                if gone.rank != first * self._stages or first == self.rank // self._stages:
                    raise
                self.lose(first)

    def gather(self, tensors: Sequence[Tensor]) -> dict[int, list[Tensor]] | None:
        """All workers' tensors by rank, on the collector; None elsewhere. Lost groups' are missing.

        Raises:
            PeerGoneError: The collector is gone; see `retried`.
        """
        self.num_gathered += 1
        if not self.collects:
            assert self.links is not None, "there are others"
            collector = self._first * self._stages
            Outgoing(self.links, collector, _STATE_TAG).send(tensors, number=self.num_gathered)
            self.links.flush(collector)
            return None
        gathered = {self.rank: list(tensors)}
        for rank in self.formation.workers:
            if rank != self.rank and self._is_there(rank):
                self._take(rank, gathered)
        return {rank: theirs for rank, theirs in gathered.items() if self._is_there(rank)}

    def _take(self, rank: int, gathered: dict[int, list[Tensor]]) -> None:
        assert self.links is not None, "there are others"
        number = 0
        try:
            while number != self.num_gathered:  # an earlier one was sent when another collector was gone
                gathered[rank], header = Incoming(self.links, rank, _STATE_TAG).take(more=False)
                number = int(str(header["number"]))
        except (PeerGoneError, PeerFailedError):
            self.lose(rank // self._stages)

    def leave(self, reason: str) -> None:
        """Tell the collector that this worker's figures will not come."""
        if self.links is None or self.collects:
            return
        try:
            Outgoing(self.links, self._first * self._stages, _STATE_TAG).fail(reason)
        except PeerGoneError:
            return  # there is nobody to tell

    def tell(self, text: str | None) -> str:
        """The collector's text, on all that are there.

        Raises:
            PeerGoneError: It is gone; see `retried`.
        """
        if self.links is None:
            assert text is not None
            return text
        if text is not None:
            message = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
            for rank in self.formation.workers:
                if rank != self.rank and self._is_there(rank):
                    try:
                        Outgoing(self.links, rank, _RESULT_TAG).send([message])
                        self.links.flush(rank)
                    except PeerGoneError:
                        self.lose(rank // self._stages)
            return text
        first = self._first
        [told], _ = Incoming(self.links, first * self._stages, _RESULT_TAG).take(more=False)
        return bytes(told.cpu().numpy()).decode()


def as_tensor(figures: Figures) -> Tensor:
    """Figures in a message."""
    return torch.frombuffer(bytearray(json.dumps(to_values(figures)).encode()), dtype=torch.uint8)


def as_figures(tensor: Tensor) -> Figures:
    """Figures out of a message."""
    figures: Figures = from_values(json.loads(bytes(tensor.cpu().numpy())), Figures)
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Makes the run's result.

    Attributes:
        setting: The grid.
        info: Names for the result.
        world: Where it runs.
        folder: Where the result goes; None for nowhere.
        racks: Number of each worker's rack.
        workers: Tells the ranks of all that have been there.
        on_ended: Hears the whole run's result, on the collector.
    """

    setting: GridSetting
    info: RunInfo
    world: World
    folder: Path | None
    racks: tuple[int, ...]
    workers: Callable[[], Iterable[int]]
    on_ended: Callable[[RunResult], None]

    def result(
        self,
        told: Sequence[Figures],
        *,
        evaluations: Sequence[Evaluation],
        sha256: str | None,
        status: RunStatus = "finished",
        error: str | None = None,
    ) -> RunResult:
        """The result of what workers have told."""
        ledger = Ledger(
            policy=self.setting.spec, info=self.info, num_workers=self.setting.num_workers, world=self.world
        )
        ledger.rack_of = self.racks
        ledger.environment = environment()
        ledger.evaluations = list(evaluations)
        ledger.parameters_sha256 = sha256
        there = {figures.rank for figures in told}
        ledger.lost = sorted(set(self.workers()) - there)
        staleness: Counter[int] = Counter()
        for figures in told:
            ledger.report(figures.rank, figures.report)
            staleness.update(dict(figures.staleness))
        ledger.stale(staleness)
        if ledger.lost and told[0].shots:  # what lost groups have done counts, too
            of_these = sum(figures.report.samples for figures in told)
            ledger.regrouped(sorted(there), samples=told[0].shots[-1][0], own=of_these, dropped=0)
        result = ledger.result(status=status, error=error)
        own = {figures.rank: Staleness.of(dict(figures.staleness)) for figures in told}
        return replace(result, workers=tuple(replace(it, staleness=own.get(it.worker)) for it in result.workers))

    def keep(self, result: RunResult) -> None:
        """The run has ended with this: write it where results go."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_results(self.folder / "results.json", [result])
        self.on_ended(result)
