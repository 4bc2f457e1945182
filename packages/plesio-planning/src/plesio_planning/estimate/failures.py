"""A training run on devices that fail: every way to go on, on its machine and on others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.core.charts import Chart, Table
from plesio.core.units import counted, format_seconds
from plesio_planning.estimate.goodput_charts import by_devices_chart, by_devices_table, percent, ways_chart, ways_table
from plesio_planning.estimate.goodput_ways import FailingDevices, WayToGoOn, ways_by_devices, ways_to_go_on
from plesio_planning.estimate.training import Training

_ROUND_STEPS = 30
"""Steps between two exchanges of groups (Streaming DiLoCo, Douillard et al. 2025: 30 to 100)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnFailingDevices:
    """The use that the devices of a run make of their time.

    Attributes:
        devices: How they fail, and how long it takes to go on.
        ways: Every way to go on, on that machine.
        by_devices: Every way by number of devices, the run's among them, with the same layout of a replica and the same
            step.
    """

    devices: FailingDevices
    num_devices: int
    ways: tuple[WayToGoOn, ...]
    by_devices: Mapping[int, tuple[WayToGoOn, ...]]

    @property
    def finding(self) -> str:
        """Each way's share on the run's machine, and what they are taken to need."""
        devices = self.devices
        shares = ", ".join(f"{way.name} {percent(way.share)}" for way in self.ways)
        return (
            f"When devices fail, every {format_seconds(devices.device_mtbf_s / self.num_devices)}, of the time is "
            f"work: {shares}. Assumed are {format_seconds(devices.repair_s)} for a repair, "
            f"{format_seconds(devices.restart_s)} to start anew, {format_seconds(devices.reconfigure_s)} to go on with "
            f"fewer or more replicas of {counted(devices.replica_devices, 'device')}, and rounds of "
            f"{format_seconds(devices.round_s)} of local steps with {format_seconds(devices.exchange_s)} for their "
            "exchange; `plesio study goodput` can be asked with other times."
        )

    @property
    def tables(self) -> Sequence[Table]:
        """The ways, and numbers of devices."""
        return [ways_table(self.ways, num_devices=self.num_devices), by_devices_table(self.by_devices)]

    @property
    def charts(self) -> Sequence[Chart]:
        """Work by number of devices; what the time goes into."""
        best = max(self.ways, key=lambda way: way.share)
        title = f"{self.num_devices:,} devices: {best.name} does work {percent(best.share)} of the time"
        return [by_devices_chart(self.by_devices, title=title), ways_chart(self.ways, num_devices=self.num_devices)]


def run_on_failing_devices(training: Training) -> RunOnFailingDevices:
    """Return every way to go on, with the run's own times: its states, its step, its replicas."""
    num_devices = training.machine.num_devices
    by_devices = ways_by_devices(lambda number: ways_to_go_on(_failing(training, number), number), num_devices)
    return RunOnFailingDevices(
        devices=_failing(training, num_devices),
        num_devices=num_devices,
        ways=by_devices[num_devices],
        by_devices=by_devices,
    )


def _failing(training: Training, num_devices: int) -> FailingDevices:
    layout, conditions = training.layout, training.conditions
    return FailingDevices(
        device_mtbf_s=num_devices * conditions.mtbf_s(num_devices, num_hosts=_hosts(training, num_devices)),
        checkpoint_s=training.checkpoint_bytes / conditions.all_storage_bytes_per_s(num_devices),
        restart_s=conditions.restart_s,
        replica_devices=layout.tp * layout.pp * layout.cp,
        round_s=_ROUND_STEPS * training.step.total_s,
    )


def _hosts(training: Training, num_devices: int) -> int:
    return -(-num_devices // training.machine.devices_per_host)
