"""The shared state on the servers of the store, as one worker reads and writes it.

Tensors travel in slices, laid out by `SliceLayout`: each server has some of each tensor. Where the servers step, the
optimizer's state is theirs too, and travels behind the tensors.

A model has many small tensors, and a call of torch takes longer than it takes to copy one of them. So all slices of a
payload are copied by one call where they are numbers of one type; only others are copied one by one. All tensors are
detached: turning autograd off for each payload would take as long as the copy.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.core.errors import ConfigError
from plesio.policies import Policy
from plesio.protocol.bulk import Initial, Table
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.parameters.layout import Slice, SliceLayout, view_packed, write_slice
from plesio.runtime.parameters.optimizer_spec import optimizer_spec
from plesio.runtime.parameters.optimizer_state import Piece, read_state, write_state
from plesio.runtime.parameters.optimizers import clear_state
from plesio.runtime.worker.exchange.local_part import local_part
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.store_client import Reply, StoreClient


class StoredState:
    """The shared state on the servers, seen from one worker.

    Args:
        policy: Its ``update`` has the servers step (``gradient``) or the workers (``delta``).
        outer: Has the state of the servers' outer optimizer, if they have one; it steps nothing here.
    """

    def __init__(
        self, replica: Replica, *, policy: Policy, client: StoreClient, layout: SliceLayout, outer: Optimizer | None
    ) -> None:
        self._replica, self._client, self._layout = replica, client, layout
        self._update, self._own_share = policy.update, policy.own_share
        self._compression = policy.compression
        self._served = replica.optimizer if policy.update == "gradient" else outer
        """The optimizer whose state the servers have."""
        island = client.divided
        self._parts = (None,) * len(layout.servers) if island is None else island.parts
        self._sent = layout if island is None else island.sent
        self._received = layout if island is None else island.received
        self._base: dict[str, torch.Tensor] = {}
        """Parameters from which the replica's progress counts, where deltas are pushed or pulls are hidden."""
        self._is_gathered = False
        replica.held_by(self)

    @property
    def _by_name(self) -> dict[str, torch.Tensor]:
        """The tensors as they are here now: FSDP2 may move its parts at the first step."""
        found = {name: t for name, t, *_ in (*self._replica.tensors.exchanged(), *self._replica.tensors.still())}
        if self._replica.island is not None:
            found = {name: local_part(tensor) for name, tensor in found.items()}
        return found | self._replica.local_parameters()

    def offer(self, *, again: bool = False) -> None:
        """Give the servers this replica's state to start from, the optimizer's too where they step it (one worker).

        It raises ExchangeError if they cannot run the replica's optimizer.

        With ``again`` they have begun, and begin anew unless another worker's updates are there already.
        """
        optimizer = None
        states: list[Table | None] = [None for _ in self._layout.servers]
        tensors: list[list[torch.Tensor]] = [[] for _ in self._layout.servers]
        if self._served is not None:
            optimizer = optimizer_spec(self._served)
            for server in range(len(self._layout.servers)):
                pieces = self._pieces(self._sent, server)
                table, tensors[server] = read_state(self._served, pieces, local=local_part)
                states[server] = table if any(table) else None
        _, payloads = self.pack(self._by_name, also=tensors)
        initials = [
            Initial(
                slices=self._layout.rows(server),
                update=self._update,
                optimizer=optimizer,
                state=states[server],
                again=again,
                part=self._parts[server],
            )
            for server in range(len(self._layout.servers))
        ]
        self._client.initialise(initials, payloads=payloads)

    def _pieces(self, layout: SliceLayout, server: int) -> list[Piece]:
        """Return the server's slices of parameters, as the layout has them here, each with its parameter."""
        parameters = self._replica.parameters
        return [(parameters[piece.name], piece) for piece in layout.servers[server] if piece.kind == "parameter"]

    def replaced(self) -> None:
        """Have the servers begin from the replica as it is now, unless another worker's updates are there already.

        Then they have it already: every worker does this before its first step.
        """
        self.offer(again=True)
        if self._update == "delta":
            self.begin_delta()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Put what the servers hold now into the replica, with the optimizer's state if they step it."""
        if self._update == "gradient":
            self._check_whole()
        replies = self._client.shared(snapshot=None, optimizer=self._update == "gradient")
        state = self._replica.state()
        self._write(state, replies)
        with self._replica.loaded(state):
            if self._update != "gradient":
                yield
                return
            with self._replica.changes.writes_states(), self._replica.stepper.state_aside():
                self._write_optimizer(replies)
                self._is_gathered = True
                try:
                    yield
                finally:
                    self._is_gathered = False

    def fetch_optimizer(self) -> None:
        """Put the servers' state into the replica's optimizer, unless it is there."""
        self._check_whole()
        if not self._is_gathered:
            self.set_optimizer(self._client.shared(snapshot=None, optimizer=True))

    def _check_whole(self) -> None:
        if self._replica.island is not None:
            raise ConfigError(
                "the servers have the optimizer's state, whole, and an island's ranks hold parts: under a policy whose "
                "servers step, leave out optimizer.state_dict() and session.state_dict(), and save each parameter's "
                "full_tensor()"
            )

    def set_optimizer(self, replies: Sequence[Reply]) -> None:
        if self._served is not None:
            with self._replica.changes.writes_states():
                clear_state(self._served)
                self._write_optimizer(replies)

    def _write_optimizer(self, replies: Sequence[Reply]) -> None:
        assert self._served is not None, "the servers have an optimizer"
        for server, reply in enumerate(replies):
            payload = torch.from_numpy(reply.payload[self._received.payload_bytes(server, reply.told.present) :])
            pieces = self._pieces(self._received, server)
            write_state(self._served, pieces, table=reply.state or [], payload=payload, local=local_part)
        self._replica.stepper.sparse_momentum()

    def merge(self, replies: Sequence[Reply], *, of: Collection[str] | None = None) -> None:
        """Overwrite the replica with the tensors that the servers have sent, and count its progress from there.

        ``of`` names the parameters that were exchanged, here and below; None: all.
        """
        if any(reply.told.compressed for reply in replies):
            self._write_base(replies)
            for name, p in self._some(of).items():
                p.detach().copy_(self._base[name])
            return
        self._write(self._by_name, replies)
        if self._update == "delta":
            self.begin_delta(of)

    @torch.no_grad()
    def merge_behind(self, replies: Sequence[Reply], *, of: Collection[str] | None = None) -> None:
        """Take over the parameters that the servers have sent, and keep the steps since they were asked for.

        Where outer steps are made of deltas, a share of the replica's own parameters is kept.
        """
        own = list(self._some(of).values())
        base = [self._base[name] for name in self._some(of)]
        if self._own_share is not None:
            self._write_base(replies)
            torch._foreach_mul_(own, self._own_share)
            torch._foreach_add_(own, torch._foreach_mul(base, 1 - self._own_share))
            return
        torch._foreach_sub_(own, base)
        self._write(self._base, replies)
        torch._foreach_add_(own, base)

    def _write_base(self, replies: Sequence[Reply]) -> None:
        """Bring the base up to what the servers have sent: parameters, or encoded changes of them."""
        for server, reply in enumerate(replies):
            slices = self._received.servers[server]
            here = slices if reply.told.present is None else [slices[index] for index in reply.told.present]
            payload = torch.from_numpy(reply.payload)
            if not reply.told.compressed:
                unpack(payload, [(self._base[piece.name], piece) for piece in here if piece.name in self._base])
                continue
            position = 0
            # of an island's parts each is encoded by itself
            for together in [here] if self._parts[server] is None else [[piece] for piece in here]:
                sizes = [piece.stop - piece.start for piece in together]
                if not sum(sizes):
                    continue
                end = position + -(-self._compression.payload_bits(sum(sizes)) // 8)
                codec = make_codec(self._compression, num_elements=sum(sizes), seed=0, rank=0)
                # copied, as a payload may begin anywhere behind another
                changes = codec.decode(payload[position:end].clone().view(codec.payload_dtype), clock=0)
                position = end
                for piece, change in zip(together, torch.split(changes, sizes), strict=True):
                    part = piece.cut(self._base[piece.name].view(-1))
                    part.add_(change.to(part.device, part.dtype))

    def begin_delta(self, of: Collection[str] | None = None) -> None:
        """Count the replica's progress from here."""
        self._base.update({name: p.clone(memory_format=torch.contiguous_format) for name, p in self._some(of).items()})

    def delta(self, of: Collection[str] | None) -> dict[str, torch.Tensor]:
        """Return how far the replica's parameters have come since they were pulled last, by name."""
        return {name: p - self._base[name] for name, p in self._some(of).items()}

    def _some(self, of: Collection[str] | None) -> Mapping[str, torch.Tensor]:
        parameters = self._replica.local_parameters()
        return parameters if of is None else {name: p for name, p in parameters.items() if name in of}

    def copy(self, *, snapshot: int | None) -> State:
        """Return a copy of the shared state now, or of a snapshot that the servers have taken."""
        state = self._replica.state()
        self._write(state, self._client.shared(snapshot=snapshot))
        return state

    def pack(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        also: Sequence[Sequence[torch.Tensor]] | None = None,
        encoded: Sequence[torch.Tensor] | None = None,
    ) -> tuple[list[list[int] | None], list[NDArray[np.uint8]]]:
        """Copy the slices of ``tensors`` to where they are sent from; return which are there (None: all).

        For each server flat tensors may follow that it also gets, or come first that stand for those of the parameters.
        """
        flat = {name: tensor.detach().reshape(-1) for name, tensor in tensors.items()}
        present: list[list[int] | None] = []
        payloads: list[NDArray[np.uint8]] = []
        for server, slices in enumerate(self._sent.servers):
            here = [index for index, piece in enumerate(slices) if piece.name in flat]
            alone = [index for index in here if encoded is None or slices[index].kind != "parameter"]
            parts = [] if encoded is None else [encoded[server]]
            parts += [slices[index].cut(flat[slices[index].name]) for index in alone]
            parts += [] if also is None else also[server]
            payload = self._client.endpoints[server].stage(sum(part.nbytes for part in parts))
            pack(parts, torch.from_numpy(payload))
            present.append(here if len(here) < len(slices) else None)
            payloads.append(payload)
        return present, payloads

    def _write(self, tensors: Mapping[str, torch.Tensor], replies: Sequence[Reply]) -> None:
        for slices, reply in zip(self._received.servers, replies, strict=True):
            here = slices if reply.told.present is None else [slices[index] for index in reply.told.present]
            unpack(torch.from_numpy(reply.payload), [(tensors[piece.name], piece) for piece in here])

    def close(self) -> None:
        self._replica.held_by(None)
        self._base.clear()


def pack(parts: Sequence[torch.Tensor], payload: torch.Tensor) -> None:
    """Copy flat tensors into ``payload`` (uint8, of exactly their bytes), one after the other."""
    if _alike(parts, payload):
        torch.cat(list(parts), out=payload.view(parts[0].dtype))
        return
    position = 0
    for part in parts:
        source = part.contiguous().view(torch.uint8)
        payload[position : position + source.numel()].copy_(source)
        position += source.numel()


def unpack(payload: torch.Tensor, pieces: Sequence[tuple[torch.Tensor, Slice]]) -> None:
    """Overwrite slices, each of a whole tensor, with what ``payload`` (uint8) has of them, one after the other.

    The rest of the payload is left alone.
    """
    tensors = [tensor for tensor, _ in pieces]
    if _alike(tensors, payload) and all(tensor.is_contiguous() for tensor in tensors):
        counts = [piece.stop - piece.start for _, piece in pieces]
        numbers = payload[: sum(counts) * tensors[0].itemsize].view(tensors[0].dtype)
        targets = [piece.cut(tensor.view(-1)) for tensor, piece in pieces]
        torch._foreach_copy_(targets, torch.split(numbers, counts))
        return
    position = 0
    for tensor, piece in pieces:
        part = payload[position : position + piece.num_bytes]
        write_slice(tensor, piece, view_packed(part, piece.torch_dtype))
        position += piece.num_bytes


def _alike(tensors: Sequence[torch.Tensor], payload: torch.Tensor) -> bool:
    """Tell whether one call can copy them all: numbers of one type, in the same kind of memory, and aligned."""
    if not tensors or payload.data_ptr() % tensors[0].itemsize:
        return False
    dtype, device = tensors[0].dtype, payload.device
    return all(tensor.dtype == dtype and tensor.device == device for tensor in tensors)


class ServerSteps:
    """Makes one worker's optimizer honour the script while the servers step.

    step hooks          run on the worker: before a step on its own gradient, which is pushed as they leave it; after it
    with the parameters that were pulled
    state_dict()        of the optimizer gives the servers' state of that moment
    load_state_dict()   is refused, as is emptying the state, or setting another, and what the script writes into
    parameters: the servers would never see it

    Args:
        fetch: Puts the servers' state into the replica's optimizer.
        policy: In force; under one that pushes deltas the workers step, and only the end differs.
        refuses: Whether what would be lost is an error; else the user is told.
    """

    def __init__(
        self, replica: Replica, *, fetch: Callable[[], None], policy: Policy, warn: Callable[[str], None], refuses: bool
    ) -> None:
        self._replica, self._fetch, self._warn = replica, fetch, warn
        self._handles = []
        replica.changes.lost_under(policy, warn=warn, refuses=refuses, elsewhere=True)
        replica.stepper.takes_steps_elsewhere()
        if policy.update == "gradient":
            for optimizer in replica.stepper.optimizers:
                self._handles += [
                    optimizer.register_state_dict_pre_hook(lambda _: fetch()),
                    optimizer.register_load_state_dict_post_hook(lambda _: replica.changes.loaded_state()),
                ]
            replica.changes.watch_states(replica.stepper.optimizers)

    @contextmanager
    def before(self, *, servers: bool) -> Iterator[None]:
        """Run the hooks before a step, and not within; those for all optimizers too if it is the servers' alone."""
        kept = [(optimizer, optimizer._optimizer_step_pre_hooks) for optimizer in self._replica.stepper.optimizers]
        for optimizer, hooks in kept:
            _run(optimizer, chain(_global_optimizer_pre_hooks.values() if servers else (), hooks.values()))
            optimizer._optimizer_step_pre_hooks = OrderedDict()
        try:
            yield
        finally:
            for optimizer, hooks in kept:
                optimizer._optimizer_step_pre_hooks = hooks

    def after(self) -> None:
        """Run the hooks after a step of the servers, whose parameters the replica has."""
        with self._replica.changes.by_hooks(self._replica.stepper.optimizers):
            for one in self._replica.stepper.optimizers:
                _run(one, chain(one._optimizer_step_post_hooks.values(), _global_optimizer_post_hooks.values()))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._replica.changes.watch_states([])
        self._replica.changes.lost_under(None, warn=self._warn, refuses=False)


def _run(optimizer: Optimizer, hooks: Iterator[Any]) -> None:
    for hook in hooks:
        hook(optimizer, (optimizer,), {})
