"""The agreement of a job's workers on the racks that they are in."""

import json
from collections.abc import Callable
from typing import Any

from plesio.core.errors import ConfigError, TransportError
from plesio.core.records import from_values, to_values
from plesio.runtime.rendezvous import Rendezvous
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.host_racks import HostRacks, find_host_racks
from plesio.runtime.worker.rack_choice import RackChoice, RackWish, answer_of_first


class RackAgreement:
    """One process's part in the agreements of one run after the other."""

    def __init__(self, place: WorkerPlace, rendezvous: Rendezvous, *, group: Callable[[str], TorchGroup]) -> None:
        self._place = place
        self._rendezvous = rendezvous
        self._group = group
        self._num_choices = 0
        self._found: HostRacks | None = None
        """Racks that were probed, which are the same in all runs."""

    def settle(self, wish: RackWish, *, device_type: str) -> RackChoice | None:
        """Agree with the other workers on the racks; all workers that the job began with call it.

        Raises:
            ConfigError: The workers ask for different racks.
            TransportError: A worker did not come, or was lost while hosts were probed.
        """
        at = f"racks/{self._num_choices}"
        self._num_choices += 1
        self._rendezvous.store.set(f"{at}/{self._place.rank}", json.dumps(to_values(wish)))
        if self._place.rank == 0 and wish.by_racks:
            wishes = [self._rendezvous.get(f"{at}/{rank}") for rank in range(self._place.num_workers)]
            self._rendezvous.store.set(f"{at}/answer", json.dumps(answer_of_first(wishes)))
        elif self._place.rank == 0:
            self._rendezvous.store.set(f"{at}/answer", "{}")
        if not wish.by_racks:
            return None
        answer = json.loads(self._rendezvous.get(f"{at}/answer"))
        if "error" in answer:
            raise ConfigError(answer["error"])
        if not answer:
            return None  # worker 0 has another policy, which the run will refuse
        found = self._probe(answer["probe"], at, device_type) if "probe" in answer else answer["choice"]
        choice: RackChoice = from_values(found, RackChoice)
        return choice

    def _probe(self, hosts: list[int], at: str, device_type: str) -> dict[str, Any]:
        """Probe the ways between the first workers of the hosts, and share the result, which worker 0 publishes."""
        try:
            leaders = self._group(device_type).split([sorted(set(hosts))])
            if self._found is None and leaders is not None:
                self._found = find_host_racks(leaders)
        except RuntimeError as error:  # Gloo's, which has no class of its own
            reason = str(error).splitlines()[0]
            raise TransportError(f"racks cannot be found: a host was lost, or is too slow ({reason})") from error
        if self._place.rank == 0:
            assert self._found is not None, "worker 0 is the first of its host"
            self._rendezvous.store.set(f"{at}/found", json.dumps(to_values(RackChoice.probed(hosts, self._found))))
        return dict(json.loads(self._rendezvous.get(f"{at}/found")))
