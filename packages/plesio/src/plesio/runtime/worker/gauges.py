"""Gauges of a worker that has a process of its own: the parts of its memory, and its use of the machine over time."""

from plesio.core.results import Utilisation
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.memory import CudaMemory, ProcessMemory
from plesio.runtime.worker.memory_gauge import MemoryGauge
from plesio.runtime.worker.utilisation import HostCounters, UtilisationGauge


class Gauges(MemoryGauge):
    """The gauges of one worker, for one session."""

    def __init__(self, replica: Replica) -> None:
        device_type = replica.device.type
        self._process, self._on_gpu = ProcessMemory(), device_type == "cuda"
        super().__init__(replica, CudaMemory() if self._on_gpu else self._process)
        self._utilisation = UtilisationGauge(HostCounters(device_type))

    def resident_peak_bytes(self) -> int:
        """Return the most bytes that were resident of this process since the session was joined."""
        return self._process.peak_bytes() if self._on_gpu else self.peak_bytes()

    def utilisation(self) -> Utilisation | None:
        return self._utilisation.summary()

    def finished(self, now_s: float) -> dict[str, float] | None:
        """Take note of a finished step; return the use since the last sample, if one was due."""
        self.stepped()
        sample = self._utilisation.stepped(now_s)
        if sample is None:
            return None
        self.look()
        return sample.to_fields()
