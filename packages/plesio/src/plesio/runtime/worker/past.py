"""The past of a resumed run's training loop, which lets the program run from its beginning.

The user's program begins anew: it makes its loaders, loops over its epochs, evaluates. Loops over the data that were
done by the time of the checkpoint give no batch, and evaluations give what they gave then; the loop that the run was in
gives the samples that were left. When that loop has begun, the random generators, the optimizer's options and the
registered objects go on from the checkpoint: all that was drawn until then had been drawn before, and a scheduler that
is stepped once an epoch has been stepped in epochs that were over.
"""

from collections.abc import Callable
from typing import Any

from plesio.core.results import Found
from plesio.runtime.worker.quiescent_point import QuiescentPoint


class WorkerPast:
    """The past of one worker.

    Args:
        values: The result of `values` then.
        go_on: Has random generators, options and registered objects go on from there.
    """

    def __init__(
        self,
        point: QuiescentPoint | None = None,
        *,
        values: dict[str, Any] | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._point = point
        self._before: list[Found] = [] if values is None else list(values["metrics"])
        self._metrics: list[Found] = []
        self._go_on: Callable[[], None] | None = None if point is None else go_on
        self.training_s = 0.0 if values is None else float(values["training_s"])
        """Seconds of training before the checkpoint."""
        self.num_workers: int | None = None if values is None else values.get("num_workers")
        """With how many the run began; None for one that begins now."""
        self._stream: dict[str, Any] | None = None if values is None else values.get("stream")
        of_stream = [] if self._stream is None else [self._stream["plan"]]
        of_samples = [] if point is None or point.plan is None else [point.plan]
        self._plan: int | None = max(of_samples + of_stream, default=None)
        """The loop that the run was in."""
        if point is not None and self._plan is None:
            self._begin()

    @property
    def samples(self) -> int:
        return 0 if self._point is None else self._point.samples

    def is_over(self, plan: int) -> bool:
        return self._plan is not None and plan < self._plan

    def stream(self, plan: int) -> dict[str, Any] | None:
        """Return the run's position in the stream of this loop, if it was in this loop."""
        return self._stream if self._stream is not None and self._stream["plan"] == plan == self._plan else None

    def begun(self, plan: int) -> None:
        if plan == self._plan:
            self._begin()

    def _begin(self) -> None:
        if self._go_on is not None:
            self._go_on()
            self._go_on = None

    @property
    def num_evaluations(self) -> int:
        return len(self._metrics)

    @property
    def metrics(self) -> list[Found]:
        """Values of all evaluations, those to come included that were done by then."""
        return [*self._metrics, *self._before[len(self._metrics) :]]

    @property
    def knows_metric(self) -> bool:
        return len(self._metrics) < len(self._before)

    def metric(self) -> Found:
        return self.evaluated(self._before[len(self._metrics)])

    def evaluated(self, metric: Found) -> Found:
        self._metrics.append(metric)
        return metric

    def values(self, *, training_s: float, stream: dict[str, Any] | None, num_workers: int) -> dict[str, Any]:
        """Return the values for a checkpoint, or for a worker that joins."""
        return {"metrics": self.metrics, "training_s": training_s, "stream": stream, "num_workers": num_workers}
