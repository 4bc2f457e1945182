"""The validation metric over a run."""

from collections.abc import Iterable

from plesio.core.results import Evaluation, Goal
from plesio.protocol.figures import RunInfo


class MetricHistory:
    """The evaluations of one run."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self.evaluations: list[Evaluation] = []
        self.parameters_sha256: str | None = None
        """Digest of the parameters that were evaluated last."""

    def enter(self, evaluations: Iterable[Evaluation], *, parameters_sha256: str | None = None) -> None:
        """Add evaluations, and the digest of the parameters that the last one is of, where it is known."""
        self.evaluations += evaluations
        self.parameters_sha256 = parameters_sha256 or self.parameters_sha256

    @property
    def judged_by(self) -> tuple[str, Goal]:
        """Name and goal of the metric: those that the latest evaluation gave, else the run's."""
        named = next((point.goals for point in reversed(self.evaluations) if point.goals), {})
        return next(iter(named.items()), (self._info.metric_name, self._info.metric_goal))

    @property
    def final(self) -> float | None:
        return self.evaluations[-1].metric if self.evaluations else None

    @property
    def time_to_target_s(self) -> float | None:
        """Time of the first evaluation that reached the target; None where none did, or there is no target."""
        target = self._info.target
        if target is None:
            return None
        sign = 1.0 if self.judged_by[1] == "max" else -1.0
        return next((point.at_s for point in self.evaluations if sign * point.metric >= sign * target), None)
