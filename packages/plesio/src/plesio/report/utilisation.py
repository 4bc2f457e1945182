"""Resources that the workers of a run used over time, from its traces."""

from dataclasses import dataclass
from pathlib import Path

from plesio.core.trace import UTILISATION, Record, read_trace
from plesio.report.perfetto import trace_paths
from plesio.report.spans import by_worker, origin_offsets_s

__all__ = ["RunUtilisation", "read_utilisation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUtilisation:
    """Samples of one run, by worker.

    Attributes:
        policy: The run's.
        samples: (Seconds since the run's first sample, what was used since the sample before), by worker.
    """

    policy: str
    samples: dict[int, tuple[tuple[float, Record], ...]]

    def has(self, field: str) -> bool:
        """Tell whether a sample has such a field."""
        return any(field in record.fields for samples in self.samples.values() for _, record in samples)

    def values(self, worker: int, *fields: str) -> list[float]:
        """The sum of these fields at each sample of a worker; NaN where one is missing."""
        return [
            float(sum(record.fields.get(field, float("nan")) for field in fields)) for _, record in self.samples[worker]
        ]


def read_utilisation(run_folder: Path) -> RunUtilisation | None:
    """The samples of a run; None if there are none.

    Raises:
        DataError: A trace cannot be read.
    """
    traces = by_worker([read_trace(path, kind=UTILISATION) for path in trace_paths(run_folder)])
    offsets_s = origin_offsets_s(traces)
    began_s = [offsets_s[worker] + trace.records[0].at_s for worker, trace in traces.items() if trace.records]
    if not began_s:
        return None
    samples = {
        worker: tuple((offsets_s[worker] + record.at_s - min(began_s), record) for record in trace.records)
        for worker, trace in traces.items()
        if trace.records
    }
    policy = str(next(iter(traces.values())).header.get("policy", run_folder.name))
    return RunUtilisation(policy=policy, samples=samples)
