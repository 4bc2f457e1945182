"""How a stage's replicas in the groups come to agree: each sends its weights to its neighbours and adds what differs.

With the mixing matrix P, replica s adds ``sum_r P_sr (x_r - x_s)``, all as they were when the mixing began
(`plesio.core.mixing`). P is symmetric, so what one of a pair adds the other takes off: the mean over the groups
stays as it is, whenever the two get to it. Neighbours of a group that is lost keep its share for themselves, until all
regroup (`plesio.runtime.grid.formation`) and each goes on with a mixer of those that are there.

**Compressed** (CHOCO-Gossip, Koloskova et al. 2019, algorithm 1): everybody keeps, of itself and of each neighbour, the
estimate x^ that what was sent comes to. Replica s sends ``q_s = C(x_s - x^_s)``; all who hear it add it to x^_s; then s
adds ``gamma sum_r P_sr (x^_r - x^_s)``. What is not sent this time is sent later, so replicas agree with any
compression; gamma is the compression's contraction. At the start all are equal, and know it; a mixer of a later
generation begins with its neighbours' weights, sent once in full.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from plesio.core.errors import ConfigError, WorkerLostError
from plesio.policies.compression import Compression, NoCompression, PowerSgd
from plesio.runtime.grid.formation import Formation, GridPlace, News
from plesio.runtime.grid.messages import Incoming, Outgoing, PeerFailedError
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.exchange.links import Links, PeerGoneError

MIXING_TAG = 3


@dataclass(slots=True)
class _Begun:
    """A mixing under way: what this replica has sent."""

    own: Tensor
    sent: Tensor


@dataclass(slots=True)
class _Neighbour:
    """A replica to mix with: its weight, messages both ways, and the version of the latest mixing it has come to."""

    share: float
    outgoing: Outgoing
    incoming: Incoming
    latest: int


class _Choco:
    """Estimates of what replicas have.

    Args:
        own: This replica's weights, with which all begin.
        neighbours: Whose estimates are kept beside its own.
        place: Of this replica's group among those that are there, for its random numbers.
    """

    def __init__(
        self, compression: Compression, own: Tensor, *, group: int, neighbours: Sequence[int], seed: int, place: int
    ) -> None:
        self._codec = make_codec(compression, num_elements=own.numel(), seed=seed, rank=place)
        self._group = group
        self.estimates = {place: own.clone() for place in (group, *neighbours)}
        self.gamma = min(1.0, max(1e-3, compression.contraction(own.numel())))

    def encode(self, own: Tensor, *, version: int) -> Tensor:
        return self._codec.encode(own - self.estimates[self._group], clock=version)

    def add(self, group: int, payload: Tensor, *, version: int) -> Tensor:
        self._codec.add(payload, to=self.estimates[group], clock=version)
        return self.estimates[group]


class Mixer:
    """One replica's part in the mixing of its stage.

    Args:
        seed: Of compression's random numbers.
        on_lost: Called once with the number of each group that is reported lost.
        lost: Those that were known before, with the first micro-batch that each had not trained on for the others.

    Raises:
        ConfigError: The compression cannot be used between neighbours.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        formation: Formation,
        links: Links,
        place: GridPlace,
        seed: int,
        news: News,
        on_lost: Callable[[int], None],
        lost: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.is_floating_point()]
        self._formation = formation
        self._group = place.group
        self._news = news
        self._on_lost = on_lost
        latest = self._mixed_before(place.stage)
        self.neighbours: dict[int, _Neighbour] = {}
        """By group."""
        for other, share in formation.neighbours(place.group).items():
            rank = formation.worker(other, place.stage)
            outgoing, incoming = Outgoing(links, rank, MIXING_TAG), Incoming(links, rank, MIXING_TAG)
            self.neighbours[other] = _Neighbour(share, outgoing, incoming, latest)
        # of groups that went before the last regrouping nothing is to be told any more
        self.lost: dict[int, int] = {group: first for group, first in lost.items() if group in formation.groups}
        """With the first micro-batch that each had not trained on for the others."""
        self.begun: dict[int, _Begun] = {}
        self.disagreement = 0.0
        """``sum_r P_sr |x_r - x_s|^2`` at the latest mixing."""
        self._choco = None if isinstance(formation.setting.compress, NoCompression) else self._estimates(seed)

    def _mixed_before(self, stage: int) -> int:
        """Return the version of the latest mixing of the generation before."""
        setting, began = self._formation.setting, self._formation.began
        version = max(0, began - setting.delays[stage]) // setting.micro_batches
        return version - version % setting.every

    def _estimates(self, seed: int) -> _Choco:
        compress = self._formation.setting.compress
        if isinstance(compress, PowerSgd):
            raise ConfigError(
                "powersgd is for gradients; compress what groups mix with qsgd, topk, randk, fp16 or bf16"
            )
        own = flat_of(self._parameters).float()
        return _Choco(
            compress,
            own,
            group=self._group,
            neighbours=tuple(self.neighbours),
            seed=seed,
            place=self._formation.place(self._group),
        )

    def meet(self) -> None:
        """Learn the neighbours' weights in full, if they are sent compressed; all replicas call it at one tick."""
        if self._choco is None:
            return
        own = flat_of(self._parameters).float()
        self._choco.estimates[self._group] = own
        for other, neighbour in self._there():
            try:  # messages in full are larger, so they have a size of their own
                Outgoing(neighbour.outgoing.links, neighbour.outgoing.to, MIXING_TAG).send([own])
            except PeerGoneError:
                self._lose(other, self._after(other))
        for other, neighbour in self._there():
            try:
                [theirs], _ = Incoming(neighbour.incoming.links, neighbour.incoming.source, MIXING_TAG).take(more=False)
                self._choco.estimates[other].copy_(theirs)
            except (PeerGoneError, PeerFailedError):
                self._lose(other, self._after(other))

    def _there(self) -> Iterator[tuple[int, _Neighbour]]:
        """Yield the neighbours that are not known to be lost."""
        for other, neighbour in self.neighbours.items():
            if other not in self.lost:
                yield other, neighbour

    @torch.no_grad()
    def begin(self, version: int) -> None:
        """Send the present weights to the neighbours, and with them the news."""
        own = flat_of(self._parameters)
        sent = own if self._choco is None else self._choco.encode(own.float(), version=version)
        self.begun[version] = _Begun(own, sent)
        for other, neighbour in self._there():
            try:
                neighbour.outgoing.send([sent], lost=sorted(self.lost.items()), **self._news.header())
                neighbour.incoming.expect()
            except PeerGoneError:
                self._lose(other, self._after(other))

    @torch.no_grad()
    def end(self, version: int) -> None:
        """Add what the mixing that began at ``version`` comes to; waits for the neighbours' weights.

        Raises:
            WorkerLostError: So many groups are lost that the others are cut in two.
        """
        begun = self.begun.pop(version)
        own = begun.own if self._choco is None else self._choco.add(self._group, begun.sent, version=version)
        correction, self.disagreement = torch.zeros_like(own), 0.0
        for other, neighbour in self._there():
            received = self._receive(other, neighbour, version)
            if received is None:
                continue
            share = neighbour.share
            theirs = received if self._choco is None else self._choco.add(other, received, version=version)
            difference = theirs - own
            self.disagreement += share * float(difference.square().sum())
            correction.add_(difference, alpha=share if self._choco is None else share * self._choco.gamma)
        add_flat(self._parameters, correction)

    def _receive(self, other: int, neighbour: _Neighbour, version: int) -> Tensor | None:
        try:
            [received], header = neighbour.incoming.take(more=False)
        except (PeerGoneError, PeerFailedError):
            self._lose(other, self._after(other))
            return None
        neighbour.latest = version
        lost = header["lost"]
        assert isinstance(lost, list)
        for group, first in lost:
            self._lose(group, first)
        self._news.receive(header)
        return received

    def _after(self, other: int) -> int:
        """Return the first micro-batch whose use a neighbour has not reported here."""
        return self.neighbours[other].latest * self._formation.setting.micro_batches

    def _lose(self, group: int, first: int) -> None:
        if group in self.lost or group == self._group or group not in self._formation.groups:
            return
        self.lost[group] = first
        self._on_lost(group)
        cut_off = self._formation.unreached(lost=sorted(self.lost))
        if cut_off:
            raise WorkerLostError(
                f"groups {', '.join(map(str, sorted(self.lost)))} of the grid are lost, and group {cut_off[0]} has no "
                f"way to the others on this graph ({self._formation.setting.mixing.name}); mixing=all keeps every way",
                ranks=tuple(
                    self._formation.worker(group, stage)
                    for group in sorted(self.lost)
                    for stage in range(self._formation.setting.stages)
                ),
            )

    def state(self) -> dict[str, Any]:
        """Return all that this replica remembers, plain; wait for neighbours' messages on mixings under way."""
        for other, neighbour in self._there():
            try:
                neighbour.incoming.hold(len(self.begun))
            except PeerGoneError:
                self._lose(other, self._after(other))
        return {
            "groups": list(self._formation.groups),
            "begun": {version: [begun.own, begun.sent] for version, begun in self.begun.items()},
            "outgoing": {other: neighbour.outgoing.num_bytes for other, neighbour in self.neighbours.items()},
            "incoming": {other: neighbour.incoming.state() for other, neighbour in self.neighbours.items()},
            "estimates": {} if self._choco is None else {k: v.clone() for k, v in self._choco.estimates.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave, of groups that had perhaps other numbers, in the same places."""
        now = dict(zip(state["groups"], self._formation.groups, strict=True))
        self.begun = {version: _Begun(own, sent) for version, (own, sent) in state["begun"].items()}
        for other, incoming in state["incoming"].items():
            self.neighbours[now[other]].outgoing.num_bytes = state["outgoing"][other]
            self.neighbours[now[other]].incoming.load(incoming)
        if self._choco is not None:
            self._choco.estimates = {now[group]: estimate.clone() for group, estimate in state["estimates"].items()}

    def leave(self, reason: str) -> None:
        for _, neighbour in self._there():
            neighbour.outgoing.fail(reason)


def flat_of(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors of numbers to one vector, of the widest of their types."""
    if not tensors:
        return torch.zeros(0)
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors])


@torch.no_grad()
def add_flat(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Add a vector to the tensors that `flat_of` would make it of."""
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().add_(part.view_as(tensor).to(tensor.dtype))
