"""Gauges of a worker that has a process of its own: the parts of its memory, and its use of the machine over time."""

from typing import Any

from plesio.core.results import MemorySplit, Utilisation
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.memory import CudaMemory, ProcessMemory
from plesio.runtime.worker.memory_gauge import MemoryGauge
from plesio.runtime.worker.utilisation import HostCounters, UtilisationGauge

__all__ = ["Gauges"]


class Gauges:
    """The gauges of one worker, for one session."""

    def __init__(self, replica: Replica) -> None:
        device_type = replica.device.type
        self._process = ProcessMemory()
        self._on_gpu = device_type == "cuda"
        self._memory = MemoryGauge(replica, CudaMemory() if self._on_gpu else self._process)
        self._utilisation = UtilisationGauge(HostCounters(device_type))

    def peak_bytes(self) -> int:
        """Return the most bytes that were resident of this process since the session was joined."""
        return self._process.peak_bytes() if self._on_gpu else self._memory.peak_bytes()

    def memory(self) -> MemorySplit | None:
        return self._memory.split()

    def utilisation(self) -> Utilisation | None:
        return self._utilisation.summary()

    def ready(self) -> dict[str, Any] | None:
        """Take note that the gradient of a step is complete; return the memory's parts then, if they are news."""
        return self._memory.ready()

    def leave_steps(self) -> None:
        """Count from here on the memory of evaluating, saving or ending apart from that of steps."""
        self._memory.leave_steps()

    def return_to_steps(self) -> None:
        self._memory.return_to_steps()

    def stepped(self, now_s: float) -> dict[str, float] | None:
        """Take note of a finished step; return the use since the last sample, if one was due."""
        self._memory.stepped()
        sample = self._utilisation.stepped(now_s)
        if sample is None:
            return None
        self._memory.look()
        return sample.to_fields()
