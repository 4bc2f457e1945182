"""`plesio.island`: the ranks that train one replica together with this process, and their process group."""

import atexit
import contextlib
import datetime

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]

from plesio.core.arguments import checked
from plesio.core.errors import ConfigError, TransportError
from plesio.policies import Policy
from plesio.runtime.job import MEET_S
from plesio.runtime.job_store import meeting_store_of
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.meeting import gloo_interface, gpu_of, process_group
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.island import Island

_made: list[Island] = []
"""This process's, when it has been asked for."""


def asked_for(place: WorkerPlace | None) -> Island | None:
    """Return this process's island where its script has asked for it, or it was started as one of one rank.

    Raises:
        ConfigError: It was started as a rank of several, and its script does not know.
    """
    started = None if place is None else place.island
    if started is not None and started.size > 1 and not _made:
        raise ConfigError(
            f"this was started as a rank of an island of {started.size}, and the script has not called "
            "plesio.island(): call it before the model is made, and share the model, or each batch, among its "
            "ranks; or leave out --island (PLESIO_ISLAND)"
        )
    return island() if started is not None or _made else None


def island_of(policy: Policy, options: JoinOptions, *, place: WorkerPlace | None, saves: bool) -> Island | None:
    """Return this process's island, as `asked_for` does; what an island cannot do is refused in one line.

    Raises:
        ConfigError: There is something.
    """
    found = asked_for(place)
    if found is None:
        return None
    if place is not None:
        _check(policy, place, saves=saves)
    if options.num_replicas > 1:
        raise ConfigError("islands train with one server a host: leave out replicas (--replicas)")
    if options.job is not None:
        raise ConfigError("islands train in a job that join makes itself, and under no simulation: leave job out")
    return found


def _check(policy: Policy, place: WorkerPlace, *, saves: bool) -> None:
    """Refuse what islands cannot do in a job."""
    if policy.adapts or policy.inner is not None:
        why = "islands do not change their policy" if policy.adapts else "islands are in no racks"
        raise ConfigError(
            f"{policy.spec}: {why}; write one that stays, as in --policy diloco:10,exchange=store (join(policy=...)): "
            "diloco, local_sgd, ssp or asp"
        )
    if policy.exchange == "collective" and (policy.update == "gradient" or policy.hook):
        raise ConfigError(
            f"{policy.spec} cannot train islands, whose ranks hold parts of a replica; use local_sgd or diloco, or a "
            "policy on the store (ssp, asp)"
        )
    if not policy.compression.cuts:
        raise ConfigError(
            f"{policy.spec}: {policy.compression.spec} factors whole matrices, of which an island's ranks have parts; "
            "use compress=qsgd:8, or topk"
        )
    if place.late and policy.exchange != "store":
        raise ConfigError(f"no island can join {policy.spec} while it runs; one can with exchange=store")
    if place.late and saves:
        raise ConfigError("no island can join a run with checkpoints; start such a run with all its islands")


@checked
def island() -> Island:
    """Return this process's island: the ranks that hold one replica together. Call it before the model is sharded.

    ``plesio run --workers 4 --island 2`` and ``PLESIO_ISLAND=2`` under torchrun make two islands of two ranks each. Its
    process group is torch's default one from then on. A process that was started as a worker of its own is an island of
    one rank.

    Raises:
        ConfigError: Torch has a default process group of other ranks.
        TransportError: A rank of the island has not come.

    Example, which makes the process an island for good::

        island = plesio.island()
        fully_shard(model, mesh=island.mesh)
    """
    if _made:
        return _made[0]
    place = WorkerPlace.from_environment()
    own = None if place is None else place.island
    worker = 0 if place is None else place.rank
    rank, size = (0, 1) if own is None else (own.rank, own.size)
    if dist.is_initialized():
        if dist.get_world_size() != size:
            raise ConfigError(
                f"torch's default process group has {dist.get_world_size()} ranks and this island {size}: leave out "
                "init_process_group(), and call plesio.island() in its place"
            )
        talk = TorchGroup(dist.new_group(backend="gloo"))
    else:
        interface = contextlib.nullcontext() if place is None else gloo_interface(place)
        with interface:
            talk = _form(_store(place, worker=worker), rank=rank, size=size, worker=worker)
    _made.append(Island(worker=worker, rank=rank, size=size, _talk=talk))
    return _made[0]


def _store(place: WorkerPlace | None, *, worker: int) -> Store:
    if place is None or place.island is None:
        return HashStore()
    store = meeting_store_of(place, timeout_s=MEET_S, whom=f"the other ranks of island {worker}")
    return PrefixStore(f"plesio/{place.restart}/island/{worker}", store)


def _form(store: Store, *, rank: int, size: int, worker: int) -> TorchGroup:
    """Make torch's default process group of these ranks; returns another one of them, for Plesio alone."""
    store.set(f"gpu/{rank}", gpu_of("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        gpus = [str(store.get(f"gpu/{other}"), "utf-8") for other in range(size)]
        timeout = datetime.timedelta(seconds=MEET_S)
        process_group(PrefixStore("group", store), rank=rank, gpus=gpus, timeout=timeout)
        atexit.register(_destroy)
        talk = TorchGroup(dist.new_group(backend="gloo"))
        talk.meet()  # connections are made at the first use
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        raise TransportError(
            f"rank {rank} of island {worker} waited {MEET_S:g} s for the other ranks ({line})"
        ) from error
    return talk


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
