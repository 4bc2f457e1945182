"""A worker's utilisation over time: processor, memory, network, and a GPU where there is one.

A sample is taken at the end of a step, by the training thread itself, if the last one is `SAMPLE_S` old: no thread
competes with the training, and processor time and bytes cover the whole stretch between two samples, however long a
step was. A sample's memory is what is resident at the end of a step, which is less than the peak within it.

When there are `MOST_SAMPLES`, each two become their mean and the stretches from then on are twice as long. So a run
keeps no more than that however long it is, and its trace has a few hundred samples more each time its length doubles.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import psutil
import torch

from plesio.core.results import Level, Utilisation

SAMPLE_S = 0.5
MOST_SAMPLES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReading:
    """Counters at one moment: what only grows, and what is there.

    Attributes:
        host_busy_s: Seconds of all processes of the machine, over all cores.
        host_s: Seconds of all cores, busy or not.
    """

    cpu_s: float
    host_busy_s: float
    host_s: float
    sent_bytes: int
    received_bytes: int
    memory_bytes: float
    gpu: float | None = None
    gpu_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A stretch between two readings; see `plesio.core.results.Utilisation` for the units."""

    cpu: float
    host_cpu: float
    memory_bytes: float
    sent_bytes_per_s: float
    received_bytes_per_s: float
    gpu: float | None = None
    gpu_memory_bytes: float | None = None

    @classmethod
    def between(cls, before: CounterReading, after: CounterReading, *, duration_s: float) -> "Sample":
        host_s = after.host_s - before.host_s
        return cls(
            cpu=(after.cpu_s - before.cpu_s) / duration_s,
            host_cpu=(after.host_busy_s - before.host_busy_s) / host_s if host_s > 0 else 0.0,
            memory_bytes=after.memory_bytes,
            sent_bytes_per_s=(after.sent_bytes - before.sent_bytes) / duration_s,
            received_bytes_per_s=(after.received_bytes - before.received_bytes) / duration_s,
            gpu=after.gpu,
            gpu_memory_bytes=after.gpu_memory_bytes,
        )

    @classmethod
    def mean_of(cls, first: "Sample", second: "Sample") -> "Sample":
        pairs = {name: (getattr(first, name), getattr(second, name)) for name in _NAMES}
        means: dict[str, Any] = {name: None if None in pair else statistics.fmean(pair) for name, pair in pairs.items()}
        return cls(**means)

    def to_fields(self) -> dict[str, float]:
        """Return the fields for a trace, with as many digits as mean anything."""
        values = {name: getattr(self, name) for name in _NAMES}
        shares = ("cpu", "host_cpu", "gpu")
        return {
            name: round(value, 3 if name in shares else None) for name, value in values.items() if value is not None
        }


_NAMES = tuple(field.name for field in fields(Sample))


class UtilisationGauge:
    """Samples of one worker."""

    def __init__(self, counters: "HostCounters") -> None:
        self._counters = counters
        self._every_s = SAMPLE_S
        self._last: tuple[float, CounterReading] | None = None
        self._next_s = float("-inf")
        self._samples: list[Sample] = []

    def stepped(self, now_s: float) -> Sample | None:
        """Take note of a finished step; return the sample, if one was due."""
        if now_s < self._next_s:
            return None
        last, reading = self._last, self._counters.read()
        self._last = now_s, reading
        self._next_s = now_s + self._every_s
        if last is None or now_s <= last[0]:
            return None
        sample = Sample.between(last[1], reading, duration_s=now_s - last[0])
        self._samples.append(sample)
        if len(self._samples) == MOST_SAMPLES:
            self._samples = [
                Sample.mean_of(*pair) for pair in zip(self._samples[::2], self._samples[1::2], strict=True)
            ]
            self._every_s *= 2
        return sample

    def summary(self) -> Utilisation | None:
        """Summarise all samples; None before the first. May be called from any thread."""
        samples = tuple(self._samples)
        if not samples:
            return None
        levels: dict[str, Any] = {name: _level([getattr(sample, name) for sample in samples]) for name in _NAMES}
        return Utilisation(**levels)


def _level(values: Sequence[float | None]) -> Level | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Level(mean=statistics.fmean(known), p95=known[max(0, -(-95 * len(known) // 100) - 1)])


class HostCounters:
    """Readings of this process, its machine and, in a network namespace, that host's interfaces.

    Args:
        device_type: The parameters': with ``cuda`` the GPU is read, too.
    """

    def __init__(self, device_type: str) -> None:
        self._process = psutil.Process()
        self._on_gpu = device_type == "cuda"
        self._gpu_tells = self._on_gpu and _can_tell_utilisation()

    def read(self) -> CounterReading:
        own, host, network = self._process.cpu_times(), psutil.cpu_times(), psutil.net_io_counters()
        host_s = sum(host) - host.guest - host.guest_nice  # which are in user and nice already
        return CounterReading(
            cpu_s=own.user + own.system,
            host_busy_s=host_s - host.idle - host.iowait,
            host_s=host_s,
            sent_bytes=0 if network is None else network.bytes_sent,
            received_bytes=0 if network is None else network.bytes_recv,
            memory_bytes=self._process.memory_info().rss,
            gpu=torch.cuda.utilization() / 100 if self._gpu_tells else None,
            gpu_memory_bytes=torch.cuda.memory_allocated() if self._on_gpu else None,
        )


def _can_tell_utilisation() -> bool:
    """Tell whether torch finds NVIDIA's pynvml, which is no dependency of Plesio."""
    try:
        torch.cuda.utilization()
    except (ModuleNotFoundError, RuntimeError):
        return False
    return True
