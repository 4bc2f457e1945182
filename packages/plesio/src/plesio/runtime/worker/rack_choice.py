"""The rack of every worker: from the caller, or found by a short probe between hosts.

All workers send rank 0 their wishes, and rank 0 decides; so all act on one answer, and none probes alone.

- `Racks` by rank, as in `plesio.join`'s ``racks=(0, 0, 1, 1)``: taken as they are.
- ``"host"``: every host is a rack.
- ``"auto"``: the values of ``PLESIO_RACK``, if it is set on all workers; else a probe
  (`exchange.host_racks`), if the policy goes by racks and there are hosts enough to form two. If it
  finds one rack, every host is a rack: the ways within a host are shorter than any between hosts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from plesio.core.errors import ConfigError
from plesio.core.records import from_values, to_values
from plesio.core.within import AT_LEAST_0
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.host_racks import FEWEST_HOSTS, HostRacks

Racks = Literal["auto", "host"] | Sequence[Annotated[int, AT_LEAST_0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RackWish:
    """A worker's wish for its racks.

    Attributes:
        host: The first rank on the worker's host.
        named: The value of ``PLESIO_RACK`` there.
    """

    policy: str
    by_racks: bool
    racks: str | tuple[int, ...]
    host: int
    named: int | None

    @classmethod
    def of(cls, place: WorkerPlace, racks: Racks, *, policy: str, by_racks: bool) -> "RackWish":
        return cls(
            policy=policy,
            by_racks=by_racks,
            racks=racks if isinstance(racks, str) else tuple(racks),
            host=place.rank - place.local_rank,
            named=place.rack,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RackChoice:
    """The racks that were decided.

    Attributes:
        racks: Each worker's, by rank; equal numbers are one rack.
        order: The hosts' first ranks in the order that suits a ring; empty without a probe.
    """

    racks: tuple[int, ...]
    how: Literal["caller", "host", "PLESIO_RACK", "probe"]
    found: HostRacks | None = None
    order: tuple[int, ...] = ()

    @classmethod
    def probed(cls, hosts: Sequence[int], found: HostRacks) -> "RackChoice":
        """Make the choice that follows from ``found`` between hosts, given by the first rank on each worker's host."""
        leaders = sorted(set(hosts))
        if found.num_racks == 1:
            return cls(racks=tuple(hosts), how="host", found=found, order=tuple(leaders))
        rack_of = dict(zip(leaders, found.racks, strict=True))
        return cls(
            racks=tuple(rack_of[host] for host in hosts),
            how="probe",
            found=found,
            order=tuple(leaders[host] for host in found.order),
        )

    def advice(self) -> str:
        """Write the advice that would spare the ways between racks, as a sentence; empty if there is none.

        The order of a process group's ring is that of its ranks, so it cannot be changed for a job that is running.
        """
        if self.how != "probe" or self.found is None or self.found.crossings <= self.found.num_racks:
            return ""
        ranks = ", ".join(map(str, self.order))
        return (
            f"a ring of all workers crosses racks {self.found.crossings} times where {self.found.num_racks} would do, "
            f"because hosts were started in another order than their racks: start those of ranks {ranks} in this order"
        )


def check_racks(racks: Racks, *, num_workers: int) -> None:
    """Check that ``racks`` is possible.

    >>> check_racks((0, 0, 1), num_workers=4)
    Traceback (most recent call last):
    plesio.core.errors.ConfigError: racks names the racks of 3 workers and there are 4; write a number for each rank
    """
    if isinstance(racks, str):
        return
    if len(racks) != num_workers:
        raise ConfigError(
            f"racks names the racks of {len(racks)} workers and there are {num_workers}; write a number for each rank"
        )


def answer_of_first(texts: Sequence[str]) -> dict[str, Any]:
    """Encode rank 0's answer to these wishes: a choice, the hosts to be probed, or the reason for neither."""
    wishes = [from_values(json.loads(text), RackWish) for text in texts]
    try:
        choice = choose(wishes)
    except ConfigError as error:
        return {"error": str(error)}
    return {"probe": [wish.host for wish in wishes]} if choice is None else {"choice": to_values(choice)}


def choose(wishes: Sequence[RackWish]) -> RackChoice | None:
    """Choose the racks from the wishes of all workers, by rank; None if a probe must decide.

    Raises:
        ConfigError: They ask for different racks, or ``PLESIO_RACK`` is set for some of them.
    """
    first = wishes[0]
    hosts = tuple(wish.host for wish in wishes)
    named = tuple(wish.named for wish in wishes if wish.named is not None)
    for rank, wish in enumerate(wishes):
        if wish.racks != first.racks:
            raise ConfigError(
                f"worker {rank} has racks={wish.racks!r} and worker 0 {first.racks!r}; write the same for all"
            )
    if not isinstance(first.racks, str):
        return RackChoice(racks=first.racks, how="caller")
    if first.racks == "auto" and named:
        if len(named) < len(wishes):
            without = next(rank for rank, wish in enumerate(wishes) if wish.named is None)
            raise ConfigError(
                f"PLESIO_RACK is set for {len(named)} of {len(wishes)} workers, not for worker {without}; "
                "set it for all, or for none"
            )
        return RackChoice(racks=named, how="PLESIO_RACK")
    agreed = all(wish.by_racks and wish.policy == first.policy for wish in wishes)  # else the run says who differs
    if first.racks == "auto" and agreed and len(set(hosts)) >= FEWEST_HOSTS:
        return None
    return RackChoice(racks=hosts, how="host")
