"""Events that a session's callbacks are told; the loggers, with stand-ins for their packages."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import torch

import plesio
from plesio.callbacks import CheckpointWritten, Evaluation, MembersChanged, MLflow, StepProgress, TensorBoard, WandB
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from support import counted_training
from support.counted_training import lose


def train(*callbacks: Any, steps: int = 2, **options: Any) -> None:
    model = torch.nn.Linear(2, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="bsp", **options) as session:
        for callback in callbacks:
            session.add_callback(callback)
        for _ in range(steps):
            loss = model(torch.ones(4, 2)).square().mean()
            loss.backward()
            session.step(loss, samples=4)
        session.evaluate(lambda: {"accuracy": 0.5, "error": 2.0})


class Listener:
    """Has methods for two events, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_begin(self, session: plesio.Session) -> None:
        self.told.append(session.rank)

    def on_step(self, progress: StepProgress) -> None:
        self.told.append(progress.clock)

    def on_close(self, result: RunResult | None) -> None:
        self.told.append(None if result is None else result.status)


def test_a_function_is_told_everything_and_an_object_what_it_has_methods_for(tmp_path: Path):
    events: list[Any] = []
    listener = Listener()
    train(events.append, listener, steps=3, checkpoint=tmp_path, every="2 steps")
    assert listener.told == [0, 1, 2, 3, "finished"]
    steps = [event for event in events if isinstance(event, StepProgress)]
    assert [(step.clock, step.samples) for step in steps] == [(1, 4), (2, 4), (3, 4)]
    assert all(step.loss is not None for step in steps)
    [evaluation] = [event for event in events if isinstance(event, Evaluation)]
    assert (evaluation.metric, evaluation.samples) == (0.5, 12)
    [written] = [event for event in events if isinstance(event, CheckpointWritten)]
    assert written.clock == 2
    assert written.folder.is_dir()
    assert isinstance(events[-1], RunResult)


def test_an_error_ends_a_session_with_no_result_and_the_callbacks_own_error_is_the_loops():
    listener = Listener()

    def fail(event: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(listener, fail)
    assert listener.told == [0, 1, None]


def test_what_is_no_callback_is_refused():
    with pytest.raises(ConfigError, match="give a function, or an object with one of the methods on_step"):
        train(SimpleNamespace(epoch=print))
    with pytest.raises(ConfigError, match='no event calls on_steps; did you mean "on_step"'):
        train(SimpleNamespace(on_steps=print, on_close=print))


def changes(policy: str, *faults: Any) -> list[list[Any]]:
    """Losses, joins and changes that each virtual worker is told of."""
    told: dict[int, list[Any]] = {}
    begin = plesio.Session.__init__

    def begun(session: plesio.Session, *args: Any, **named: Any) -> None:
        begin(session, *args, **named)
        own = told.setdefault(session.rank, [])
        session.add_callback(SimpleNamespace(on_members=own.append, on_transition=own.append))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plesio.Session, "__init__", begun)
        counted_training.run(policy, *faults, num_workers=3, loops=2)
    return [told[rank] for rank in sorted(told)]


def test_lost_workers_and_changes_of_the_policy_are_told_on_every_worker():
    lost, _, _ = changes("bsp", lose(1, at_s=0.2))
    assert lost == [MembersChanged(lost=(1,))]
    for told in changes("switch:bsp/local_sgd:4@5"):
        [transition] = told
        assert (transition.clock, transition.after.spec) == (5, "local_sgd:4")


def logged(name: str, module: ModuleType, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, module)
    train(make())


def test_tensorboard_gets_the_loss_the_metrics_and_the_end(monkeypatch: pytest.MonkeyPatch):
    module = MagicMock()
    logged("torch.utils.tensorboard", module, partial(TensorBoard, "runs/board"), monkeypatch)
    writer = module.SummaryWriter.return_value
    module.SummaryWriter.assert_called_once_with("runs/board")
    scalars = [(one.args[0], one.args[2]) for one in writer.add_scalar.mock_calls]
    assert scalars[:4] == [("train/loss", 1), ("train/loss", 2), ("evaluation/accuracy", 8), ("evaluation/error", 8)]
    assert writer.mock_calls[-1] == call.close()


def test_mlflow_starts_and_ends_a_run_unless_one_is_active(monkeypatch: pytest.MonkeyPatch):
    own, users = MagicMock(), MagicMock()
    own.active_run.return_value = None
    logged("mlflow", own, partial(MLflow, run_name="mine"), monkeypatch)
    own.start_run.assert_called_once_with(run_name="mine")
    own.end_run.assert_called_once_with("FINISHED")
    assert call({"evaluation/accuracy": 0.5, "evaluation/error": 2.0}, step=8) in own.log_metrics.mock_calls
    logged("mlflow", users, MLflow, monkeypatch)
    assert not users.start_run.called
    assert not users.end_run.called


def test_wandb_logs_over_axes_of_its_own_and_offline_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch):
    module = MagicMock()
    module.run = None
    logged("wandb", module, partial(WandB, mode="offline"), monkeypatch)
    module.init.assert_called_once_with(mode="offline")
    run = module.init.return_value
    assert call({"evaluation/accuracy": 0.5, "evaluation/error": 2.0, "samples": 8}) in run.log.mock_calls
    run.finish.assert_called_once_with(exit_code=0)


@pytest.mark.parametrize("make", [TensorBoard, MLflow, WandB])
def test_a_missing_package_is_named_in_one_line(make: Any, monkeypatch: pytest.MonkeyPatch):
    for name in ("torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    name = make.__name__.lower()
    with pytest.raises(ConfigError, match=f"^plesio.callbacks.{make.__name__} needs {name}; pip install {name}$"):
        make()


def test_a_folder_of_runs_is_not_taken_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="pip install wandb"):
        WandB()
    monkeypatch.delitem(sys.modules, "wandb")
