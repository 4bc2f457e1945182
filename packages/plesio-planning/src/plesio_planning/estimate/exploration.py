"""The alternatives to a run that an estimate looks at: other links, layouts and machines, and failures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.within import BANDWIDTH, Within
from plesio_planning.estimate.hardware import Accelerator, Machine, find_accelerator, machine_of, parse_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLinks:
    """Bandwidths of a cluster, where they are not the accelerator's.

    Attributes:
        local_bytes_per_s: Bandwidth in a host: "450 GB/s"; else the accelerator's.
        network_bytes_per_s: Bandwidth of a host to others: "3200 Gbit/s"; else the accelerator's.
    """

    local_bytes_per_s: Annotated[float | None, BANDWIDTH] = None
    network_bytes_per_s: Annotated[float | None, BANDWIDTH] = None

    def machine(self, cluster: str) -> Machine:
        """Make the cluster of this name, with these links.

        Raises:
            ConfigError: No cluster has this name.
        """
        try:
            machine = parse_machine(cluster)
        except ConfigError as error:
            raise ArgumentError.about("cluster", error) from None
        if self.local_bytes_per_s is not None:
            machine = replace(machine, local=replace(machine.local, bytes_per_s=self.local_bytes_per_s))
        if self.network_bytes_per_s is not None:
            machine = replace(machine, nic=replace(machine.nic, bytes_per_s=self.network_bytes_per_s))
        return machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """The alternatives that an estimate looks at.

    Attributes:
        failures: Show every way to go on when devices fail, up to a million of them.
        any_memory: Estimate also what does not fit into the devices' memory.
        search: Find the fastest layout; keep the degrees given.
        top: Layouts that a search shows; else 10.
        num_devices: Machines that a search compares; else half and twice, or what limits allow.
        accelerators: The same, of other accelerators; with limits and without a cluster all that there are.
    """

    failures: bool = False
    any_memory: bool = False
    search: bool = False
    top: Annotated[int | None, Within(1)] = None
    num_devices: Annotated[tuple[int, ...] | None, Within(1)] = None
    accelerators: tuple[str, ...] | None = None

    def check(self) -> None:
        """Make sure that each has an effect on the estimate of one machine.

        Raises:
            ConfigError: One has none.
        """
        if not self.search and (self.num_devices, self.accelerators) != (None, None):
            raise ArgumentError(
                "`num_devices` and `accelerators` compare machines; add `search`, `by` or `budget_dollars`"
            )
        if not self.search and self.top is not None:
            raise ArgumentError("`top` is of a search; add `search`")
        if self.search and self.any_memory:
            raise ArgumentError(
                "`any_memory` has no effect with `search`, which finds what fits; leave one of them out"
            )

    def machines(self, machine: Machine) -> Sequence[Machine]:
        """Return the machine itself first, then those that a search compares it with."""
        if not self.search:
            return [machine]
        sizes = self.num_devices
        if sizes is None and self.accelerators is None:
            sizes = (_half(machine), 2 * machine.num_devices)
        numbers = [number for number in sizes or () if number not in (0, machine.num_devices)]
        try:
            same = [machine, *(of_size(machine, number) for number in numbers)]
        except ConfigError as error:
            raise ArgumentError.about("num_devices", error) from None
        try:
            kinds = [find_accelerator(name) for name in self.accelerators or ()]
            others = [_of_kind(one, kind) for kind in kinds if kind != machine.accelerator for one in same]
        except ConfigError as error:
            raise ArgumentError.about("accelerators", error) from None
        return [*same, *others]


def _half(machine: Machine) -> int:
    """Return half of the devices, in whole hosts; 0 if there is no such half."""
    if machine.num_hosts == 1 or machine.accelerator.own_adapters:
        half = machine.num_devices // 2
        return half if machine.accelerator.fills_hosts(half) else 0
    return machine.num_hosts // 2 * machine.devices_per_host


def of_size(machine: Machine, num_devices: int) -> Machine:
    """Return more or fewer of the same hosts, or a smaller one."""
    if not machine.accelerator.own_adapters:
        return replace(machine, num_devices=num_devices, devices_per_host=min(num_devices, machine.devices_per_host))
    a_host = machine.accelerator.host_of(num_devices)
    nic = replace(machine.nic, bytes_per_s=machine.nic.bytes_per_s * a_host / machine.devices_per_host)
    return replace(machine, num_devices=num_devices, devices_per_host=a_host, nic=nic)


def _of_kind(machine: Machine, kind: Accelerator) -> Machine:
    """Return as many other accelerators, in hosts of the same size if both kinds are on boards."""
    on_boards = not (machine.accelerator.own_adapters or kind.own_adapters)
    return machine_of(kind, machine.num_devices, devices_per_host=machine.devices_per_host if on_boards else None)
