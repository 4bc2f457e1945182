"""Callbacks for `plesio.Session.add_callback`: what they are told, and three that log to a tracker.

A callback is a function, which is called with every event, or an object with methods for those that it wants:

    on_step(StepProgress)             after each step of this worker that counts
    on_evaluation(Evaluation)         on the worker that has evaluated
    on_transition(plesio.Transition)  the policy has changed
    on_members(MembersChanged)        workers were lost, or joined
    on_checkpoint(CheckpointWritten)  a checkpoint is whole; on rank 0
    on_close(RunResult)               the session is closed; with None where an error has ended it

An object's ``on_begin(session)`` is called when it is added. All are called by the training thread between two steps,
and their time counts as computing; an error that they raise is the training loop's.

    session.add_callback(plesio.callbacks.TensorBoard("runs/tensorboard"))

`TensorBoard`, `MLflow` and `WandB` log on rank 0: its loss by its steps, metrics by the samples of all workers,
changes of the policy, and the run's figures when it is closed. Their packages are imported when they are made.
"""

import contextlib
from importlib import import_module
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError
from plesio.core.results import Evaluation, RunResult
from plesio.runtime.worker.callbacks import CheckpointWritten, MembersChanged, Transition
from plesio.runtime.worker.exchange.exchange import StepProgress

__all__ = ["CheckpointWritten", "Evaluation", "MLflow", "MembersChanged", "StepProgress", "TensorBoard", "WandB"]


def _imported(module: str, *, package: str, logger: str) -> Any:
    with contextlib.suppress(ImportError):
        found = import_module(module)
        if getattr(found, "__file__", package) is not None:  # a folder of runs, ./wandb, is a package without a file
            return found
    raise ConfigError(f"plesio.callbacks.{logger} needs {package}; pip install {package}")


class _Tracker:
    """The common part: on rank 0 names and numbers are logged, at a place on one of two axes."""

    def __init__(self) -> None:
        self._leads = False

    def on_begin(self, session: Any) -> None:
        """Begin to log, on rank 0."""
        self._leads = session.rank == 0
        if self._leads:
            self._begin(policy=session.policy.spec, num_workers=session.num_workers)

    def on_step(self, progress: StepProgress) -> None:
        """Log the loss."""
        if self._leads and progress.loss is not None:
            self._log({"train/loss": progress.loss}, at=progress.clock)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Log the metrics."""
        if self._leads:
            metrics = evaluation.metrics or {"metric": evaluation.metric}
            self._log({f"evaluation/{name}": value for name, value in metrics.items()}, at=evaluation.samples)

    def on_transition(self, transition: Transition) -> None:
        """Log the policy in force."""
        if self._leads:
            self._note("policy", transition.after.spec, at=transition.clock)

    def on_close(self, result: RunResult | None) -> None:
        """Log the run's figures, and close the tracker."""
        if not self._leads:
            return
        self._leads = False
        if result is not None:
            figures = {
                "run/samples_per_s": result.samples_per_s,
                "run/wall_s": result.wall_s,
                "run/mean_staleness": result.staleness.mean,
                "run/lost_workers": float(len(result.lost_workers)),
            }
            self._log(figures, at=result.samples)
        self._end(failed=result is None)

    def _begin(self, *, policy: str, num_workers: int) -> None:
        raise NotImplementedError

    def _log(self, values: dict[str, float], *, at: int) -> None:
        raise NotImplementedError

    def _note(self, name: str, text: str, *, at: int) -> None:
        raise NotImplementedError

    def _end(self, *, failed: bool) -> None:
        raise NotImplementedError


class TensorBoard(_Tracker):
    """Logs to TensorBoard's files in ``folder``.

    Raises:
        ConfigError: The package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path | str = "runs/tensorboard") -> None:
        super().__init__()
        self._make = _imported("torch.utils.tensorboard", package="tensorboard", logger="TensorBoard").SummaryWriter
        self._folder = str(folder)

    def _begin(self, *, policy: str, num_workers: int) -> None:
        self._writer = self._make(self._folder)
        self._writer.add_text("policy", policy, 0)
        self._writer.add_text("workers", str(num_workers), 0)

    def _log(self, values: dict[str, float], *, at: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, at)

    def _note(self, name: str, text: str, *, at: int) -> None:
        self._writer.add_text(name, text, at)

    def _end(self, *, failed: bool) -> None:
        self._writer.close()


class MLflow(_Tracker):
    """Logs to MLflow's active run, or to one of its own, which it ends; ``settings`` are those of ``start_run``.

    Raises:
        ConfigError: The package ``mlflow`` is not installed.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._mlflow = _imported("mlflow", package="mlflow", logger="MLflow")
        self._settings, self._owns = settings, False

    def _begin(self, *, policy: str, num_workers: int) -> None:
        if self._mlflow.active_run() is None:
            self._mlflow.start_run(**self._settings)
            self._owns = True
        self._mlflow.log_params({"policy": policy, "num_workers": num_workers})

    def _log(self, values: dict[str, float], *, at: int) -> None:
        self._mlflow.log_metrics(values, step=at)

    def _note(self, name: str, text: str, *, at: int) -> None:
        self._mlflow.set_tag(f"{name} from step {at}", text)  # there are no texts over steps

    def _end(self, *, failed: bool) -> None:
        if self._owns:
            self._mlflow.end_run("FAILED" if failed else "FINISHED")


class WandB(_Tracker):
    """Logs to Weights & Biases' active run, or to one of its own; ``settings`` are those of ``wandb.init``.

    ``WandB(mode="offline")`` sends nothing: ``wandb sync`` does so later.

    Raises:
        ConfigError: The package ``wandb`` is not installed.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._wandb = _imported("wandb", package="wandb", logger="WandB")
        self._settings, self._owns = settings, False

    def _begin(self, *, policy: str, num_workers: int) -> None:
        self._owns = self._wandb.run is None
        self._run = self._wandb.init(**self._settings) if self._owns else self._wandb.run
        self._run.config.update({"policy": policy, "num_workers": num_workers})
        self._run.define_metric("train/*", step_metric="step")
        self._run.define_metric("evaluation/*", step_metric="samples")

    def _log(self, values: dict[str, float], *, at: int) -> None:
        # W&B's own axis counts the calls
        axis = "step" if any(name.startswith("train/") for name in values) else "samples"
        self._run.log({**values, axis: at})

    def _note(self, name: str, text: str, *, at: int) -> None:
        self._run.log({name: text, "step": at})

    def _end(self, *, failed: bool) -> None:
        if self._owns:
            self._run.finish(exit_code=int(failed))
