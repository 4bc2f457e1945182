"""Evaluates what the workers have made together, at a place of the training loop and after its end."""

from dataclasses import dataclass

from plesio.core.results import Evaluation, Found
from plesio.runtime.worker.exchange.exchange import Exchange, SharedState
from plesio.runtime.worker.exchange.replica import Replica, State, parameters_sha256
from plesio.runtime.worker.judge import Goals, Judge, Metric, evaluation_mode
from plesio.runtime.worker.sharing import Sharing
from plesio.runtime.worker.world import World

__all__ = ["Evaluator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluates the shared parameters on one worker.

    Args:
        replica: Takes the shared parameters while they are evaluated.
        world: Keeps what is found.
        exchange: Has the shared parameters.
        sharing: Tells the workers that wait for the metric.
    """

    replica: Replica
    world: World
    exchange: Exchange
    sharing: Sharing

    def evaluate(
        self, metric: Metric, goal: Goals, *, samples: int | None, at_s: float, number: int | None = None
    ) -> Found:
        """Evaluate the snapshots and the present parameters, where this worker has them.

        Args:
            metric: Called with the shared parameters in the model.
            goal: The better direction.
            samples: Samples of all workers so far, if they are known here.
            at_s: Training time of the run so far.
            number: Number of this worker's evaluation, where all workers are to have its result; None where some wait.

        Returns:
            As `plesio.Session.evaluate`.
        """

        def find() -> Found:
            state = self.exchange.shared()
            if state is None:
                return None
            present = SharedState(self._samples(samples), at_s, state)
            kept = self.exchange.snapshots() if number is None or self.world.rank == 0 else []
            points = [self._measure(metric, goal, shared) for shared in [*kept, present]]
            self.world.evaluated(points, parameters_sha256=None, number=number)
            return points[-1].found

        return self.sharing.share_metric(find, number=number)

    def finish(self, state: State, metric: Metric | None, goal: Goals, *, samples: int | None, at_s: float) -> None:
        """Evaluate what the run has ended with, ``state``, and leave it in the model."""
        snapshots = self.exchange.snapshots()
        final = SharedState(self._samples(samples), at_s, state)
        if metric is not None:
            if not snapshots or snapshots[-1].samples < final.samples:
                snapshots.append(final)
            points = [self._measure(metric, goal, shared) for shared in snapshots]
            self.world.evaluated(points, parameters_sha256=None)
        self.replica.load(state)
        self.world.evaluated([], parameters_sha256=parameters_sha256(self.replica.parameters, state))

    def _samples(self, samples: int | None) -> int:
        return samples if samples is not None else self.world.result(reports=False).samples

    def _measure(self, metric: Metric, goal: Goals, shared: SharedState) -> Evaluation:
        with self.replica.loaded(shared.state), evaluation_mode(self.replica.model):
            return Judge(self.world.info).judged(metric, goal, samples=shared.samples, at_s=shared.at_s)
