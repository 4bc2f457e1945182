"""Resources that the workers of a run used over time, from its traces."""

from dataclasses import dataclass

from plesio.core.trace import UTILISATION, Record
from plesio.report.spans import RunTraces

__all__ = ["RunUtilisation", "utilisation_of"]


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


def utilisation_of(run: RunTraces) -> RunUtilisation | None:
    """Return the samples of a run; None if there are none."""
    taken = {
        worker: [
            (run.offsets_s[worker] + record.at_s, record) for record in trace.records if record.kind == UTILISATION
        ]
        for worker, trace in run.by_worker.items()
    }
    began_s = min((records[0][0] for records in taken.values() if records), default=None)
    if began_s is None:
        return None
    samples = {
        worker: tuple((at_s - began_s, record) for at_s, record in records)
        for worker, records in taken.items()
        if records
    }
    return RunUtilisation(policy=run.policy, samples=samples)
