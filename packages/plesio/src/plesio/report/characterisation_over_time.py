"""Figures 11 to 14 and 16 to 19 of source 004: what workers used over time, under DDP and FSDP."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.core.charts import Axis, Chart, LineChart, Panels, Series
from plesio.core.combination import Combination
from plesio.core.errors import DataError
from plesio.core.units import byte_unit
from plesio.report import source_004 as source
from plesio.report.characterisation import Characterisation
from plesio.report.utilisation import RunUtilisation, read_utilisation

__all__ = ["Used", "over_time_charts", "read_used"]

_MODEL = "convnext"
"""The source's figures are of this one."""
_ROOM = 1.2
"""Upper end of an axis over the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the workers of one run used.

    Attributes:
        title: Which run it is.
        samples: What they used, over time.
    """

    title: str
    samples: RunUtilisation


def read_used(found: Characterisation, folders: Mapping[Combination, Path]) -> list[Used]:
    """What was used under DDP and FSDP with 2 and 4 workers, of the source's model where it was run.

    A trace that cannot be read is left out, and a run that was over before two samples were taken.
    """
    models = found.models()
    model = _MODEL if _MODEL in models else models[0]
    used = []
    for strategy in (source.DDP, source.FSDP):
        for workers in source.WORKERS[1:]:
            summary = found.summary(strategy, model=model, workers=workers)
            comparison = found.measured(model=model, workers=workers)
            if summary is None or comparison is None:
                continue
            folder = next(folders[one] for one, of_it in found.settings.items() if of_it is comparison)
            samples = _first_of(folder, summary.policy)
            if samples is not None and all(len(taken) > 1 for taken in samples.samples.values()):
                used.append(Used(title=f"{model}, {strategy}, {workers} workers", samples=samples))
    return used


def _first_of(folder: Path, policy: str) -> RunUtilisation | None:
    """Of the policy's first run that has samples."""
    for run in sorted((folder / "runs").glob("*")):
        with contextlib.suppress(DataError):
            samples = read_utilisation(run)
            if samples is not None and samples.policy == policy:
                return samples
    return None


def over_time_charts(used: Sequence[Used]) -> dict[str, Chart]:
    """The charts, by the numbers of the source's figures."""
    if not used:
        return {}
    resident = [
        value for one in used for worker in one.samples.samples for value in one.samples.values(worker, "memory_bytes")
    ]
    unit, scale = byte_unit(max(resident, default=0.0))
    return {
        "11 to 14": _panels(
            used,
            slug="figures-11-14",
            title="Processor time of each worker over time",
            caption="A line a worker; 100 % is one core. The source has GPU utilisation, alike on all GPUs.",
            axis="% of a core",
            field="cpu",
            scale=100.0,
        ),
        "16 to 19": _panels(
            used,
            slug="figures-16-19",
            title="Resident memory of each worker over time",
            caption="A line a worker, with interpreter and libraries; what the model takes of it is in Figure 15. The "
            "source has GPU memory.",
            axis=unit,
            field="memory_bytes",
            scale=1 / scale,
        ),
    }


def _panels(
    used: Sequence[Used], *, slug: str, title: str, caption: str, axis: str, field: str, scale: float
) -> Panels:
    values = [value for one in used for worker in one.samples.samples for value in one.samples.values(worker, field)]
    most = _ROOM * scale * max((value for value in values if value == value), default=1.0)
    charts = [
        LineChart(
            title=one.title,
            x=Axis(title="seconds", from_zero=True),
            y=Axis(title=axis, view=(0, most)),
            series=[
                Series(
                    name=f"worker {worker}",
                    x=[at_s for at_s, _ in samples],
                    y=[scale * value for value in one.samples.values(worker, field)],
                )
                for worker, samples in one.samples.samples.items()
            ],
        )
        for one in used
    ]
    return Panels(slug=slug, title=title, caption=f"{caption} First seed.", charts=charts, columns=2)
