"""Lightning on a session: `PlesioStrategy` for its Trainer, `PlesioFabricStrategy` for Fabric.

They are two classes because Lightning's are: its Trainer and Fabric take no strategy of each other. Both are
Lightning's own strategies for DDP, with a session where those have the wrapper.

**Automatic optimization.** The session has a module around the LightningModule, whose forward pass is
``training_step``, as Lightning's DDP has: so ``bsp`` overlaps the backward pass with its reductions, whatever
``training_step`` calls.

**Manual optimization.** Backward passes are within ``training_step``. Under ``bsp`` the gradients are averaged after
each. Several optimizers step one after the other, each in a step of the session's (`SessionOptimizer`).
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.optim import Optimizer

from plesio.core.errors import ConfigError
from plesio.integrations.joined import ALL_DEVICES, begin, checked_policy, counted, leave, optimizers_of
from plesio.policies import Policy
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.loops import num_samples
from plesio.runtime.worker.session import Session


class PlesioStrategy(DDPStrategy):
    """A strategy of Lightning's Trainer whose workers exchange by a policy.

    Write ``Trainer(strategy=PlesioStrategy("ssp:4"))``. Evaluations and checkpoints in mid-run have the shared
    parameters; when ``fit`` ends, every worker has the final ones.

    Args:
        policy: As in `plesio.join`; None for the launcher's (``plesio run --policy``), or ``adaptive,store=off``.
        trace: Folder for traces and ``results.json``; None for none.
        **settings: Of ``DDPStrategy``: ``checkpoint_io``, ``precision_plugin``, ``timeout``, ``process_group_backend``.

    Raises:
        ConfigError: A worker of Lightning's cannot train under the policy, or a setting is for DDP itself.
    """

    optimizers: list[Any]

    def __init__(self, policy: Policy | str | None = None, *, trace: Path | str | None = None, **settings: Any) -> None:
        self._policy, self._trace = checked_policy(policy, framework="Lightning"), trace
        super().__init__(**_checked_settings(settings))
        self.session: Session | None = None
        """The session, while ``fit`` trains."""
        self._accumulates = False

    def _configure_launcher(self) -> None:
        _check_started(self.num_processes, self.num_nodes)
        super()._configure_launcher()

    def _get_process_group_backend(self) -> str:
        return self._process_group_backend or _backend(self.root_device)

    def configure_ddp(self) -> None:
        """Have a module of the session's where DDP would be."""
        self.model = _Redirected(self.lightning_module)

    def setup_optimizers(self, trainer: Any) -> None:
        """Join with the optimizers that the LightningModule configures."""
        super().setup_optimizers(trainer)
        self.session = begin(
            self.model, self.optimizers, policy=self._policy, trace=self._trace, scaler=_scaler(self.precision_plugin)
        )
        self.optimizers = optimizers_of(self.session)
        if not any(isinstance(one, _Closes) for one in trainer.callbacks):
            trainer.callbacks.insert(0, _Closes())

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss, as the forward pass of the session's module if the optimization is automatic."""
        if self.session is not None:
            optimizers_of(self.session)[0].given(num_samples(args) or num_samples(kwargs))
        if self.lightning_module.automatic_optimization:
            return super().training_step(*args, **kwargs)
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Average the gradients that the backward pass has not, so that their mean can be clipped."""
        super().post_backward(closure_loss)
        if self.session is not None and not self._accumulates:
            optimizers_of(self.session)[0].average()

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients on this worker in this context."""
        self._accumulates = True
        try:
            with contextlib.nullcontext() if self.session is None else self.session.accumulate():
                yield
        finally:
            self._accumulates = False

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Make the session's step; where losses are scaled, the session moves the scale."""
        scaler = _scaler(self.precision_plugin)
        if scaler is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)

        def scaled() -> Any:
            result = closure()
            scaler.unscale_(getattr(optimizer, "wrapped", optimizer))  # before the gradients are clipped
            self.precision_plugin._after_closure(model or self.lightning_module, optimizer)
            return result

        return optimizer.step(scaled, **kwargs)

    def _shared(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.session is None else self.session.shared

    def on_validation_start(self) -> None:
        """Put the shared parameters into the model."""
        self._shared().__enter__()

    def on_validation_end(self) -> None:
        """Put this worker's own parameters back."""
        self._shared().__exit__(None, None, None)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state of the model, with the shared parameters; all workers call it."""
        copies = self.session is not None and self.session.shared.differs
        with self._shared():
            state: dict[str, Any] = super().lightning_module_state_dict()
            return copy.deepcopy(state) if copies else state

    def on_train_end(self) -> None:
        """Close the session; every worker's model has the final parameters."""
        if self.session is not None:
            session, self.session = self.session, None
            leave(session)

    def on_exception(self, exception: BaseException) -> None:
        """End the session because of ``exception``."""
        super().on_exception(exception)
        if self.session is not None:
            session, self.session = self.session, None
            session.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self) -> None:
        """Close the session, if it is open, and take its module away."""
        self.on_train_end()
        if self.lightning_module is not None:
            self.model = self.lightning_module
        super().teardown()


class PlesioFabricStrategy(FabricDDPStrategy):
    """A strategy of Lightning Fabric whose workers exchange by a policy.

    ``fabric.setup(model, optimizer)`` joins. ``with fabric.strategy.shared():`` every worker's model has the shared
    parameters; ``fabric.save`` saves those. At the end ``fabric.strategy.leave()`` closes the session, and every worker
    has the final ones.

    Args:
        policy: As in `plesio.join`; None for the launcher's (``plesio run --policy``), or ``adaptive,store=off``.
        trace: Folder for traces and ``results.json``; None for none.
        **settings: Of Fabric's ``DDPStrategy``: ``checkpoint_io``, ``precision``, ``timeout``,
            ``process_group_backend``.

    Raises:
        ConfigError: A worker of Fabric's cannot train under the policy, or a setting is for DDP itself.
    """

    def __init__(self, policy: Policy | str | None = None, *, trace: Path | str | None = None, **settings: Any) -> None:
        self._policy, self._trace = checked_policy(policy, framework="Fabric"), trace
        super().__init__(**_checked_settings(settings))
        self._backward_sync_control = _Accumulation(self)
        self.session: Session | None = None
        """The session, from ``setup`` to `leave`."""
        self._module: nn.Module | None = None
        self._count: torch.utils.hooks.RemovableHandle | None = None

    def _configure_launcher(self) -> None:
        _check_started(self.num_processes, self.num_nodes)
        super()._configure_launcher()

    def _get_process_group_backend(self) -> str:
        return self._process_group_backend or _backend(self.root_device)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Take the module as it is."""
        self._module = module
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Any:
        """Join with the module that was set up and this optimizer."""
        assert self._module is not None, "Fabric sets the module up first"
        return self._join(self._module, [optimizer])[0]

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Any], Any]:
        """Join with the module and the optimizers."""
        return module, self._join(module, optimizers), scheduler

    def _join(self, module: nn.Module, optimizers: list[Optimizer]) -> list[Any]:
        if self.session is not None:
            raise ConfigError(
                "fabric.setup has had optimizers already, and a worker is in one session at a time: set all of them up "
                "in one call, or call fabric.strategy.leave() between two trainings"
            )
        scaler = _scaler(self.precision)
        self.session = begin(module, optimizers, policy=self._policy, trace=self._trace, scaler=scaler)
        self._count = counted(self.session, calls_of=module)
        return optimizers_of(self.session)

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """Make the session's step; where losses are scaled, the session moves the scale."""
        return optimizer.step(**kwargs)

    def clip_gradients_norm(self, module: nn.Module, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Clip by the norm, after the gradients have been averaged (under ``bsp``) and unscaled."""
        optimizer.average()
        return super().clip_gradients_norm(module, getattr(optimizer, "wrapped", optimizer), *args, **kwargs)

    def clip_gradients_value(self, module: nn.Module, optimizer: Any, clip_val: float) -> Any:
        """Clip the values, after the gradients have been averaged (under ``bsp``) and unscaled."""
        optimizer.average()
        return super().clip_gradients_value(module, getattr(optimizer, "wrapped", optimizer), clip_val)

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Put the shared parameters into every worker's model in this context; all workers enter it at one place."""
        return contextlib.nullcontext() if self.session is None else self.session.shared

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save the shared parameters; all workers call it."""
        with self.shared():
            super().save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Load before the first step.

        Raises:
            ConfigError: A step has been made.
        """
        rest: Mapping[str, Any] = super().load_checkpoint(*args, **kwargs)
        for optimizer in [] if self.session is None else optimizers_of(self.session):
            optimizer.load_state_dict(optimizer.state_dict())  # the session begins from the model as it is now
        return rest

    def leave(self) -> None:
        """Close the session; every worker's model has the final parameters."""
        if self.session is not None and self._count is not None:
            self._count.remove()
            session, self.session = self.session, None
            leave(session)


class _Closes(Callback):
    """Closes the session before other callbacks end: what they write into the model then (averaged weights) stays."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy.on_train_end()


class _Redirected(nn.Module):
    """Has the forward pass of a LightningModule, which Lightning has call ``training_step``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class _Accumulation:
    """Keeps gradients on the worker, for Fabric's ``no_backward_sync``."""

    def __init__(self, strategy: PlesioFabricStrategy) -> None:
        self._strategy = strategy

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> contextlib.AbstractContextManager[None]:
        session = self._strategy.session
        return session.accumulate() if enabled and session is not None else contextlib.nullcontext()


class _Launched(ClusterEnvironment):
    """The place of a worker that ``plesio run``, torchrun or a cluster has started."""

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place
        self.creates_processes_externally = True
        self.main_address, self.main_port = place.address, place.port

    creates_processes_externally = True
    main_address = ""
    main_port = 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._place.num_workers

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has set it."""

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has set it."""

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.host


_SETTINGS = ("checkpoint_io", "precision_plugin", "precision", "timeout", "process_group_backend")


def _checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the place of this worker; ConfigError for one that no session honours."""
    for name in settings:
        if name not in _SETTINGS:
            raise ConfigError(
                f'"{name}" is for DDP, and the session exchanges instead: leave it out (compression is the policy\'s, '
                "as in bsp,compress=topk:0.1)"
            )
    place = WorkerPlace.from_environment()
    return dict(settings) if place is None else {**settings, "cluster_environment": _Launched(place)}


def _check_started(num_devices: int, num_nodes: int) -> None:
    """Refuse other numbers of devices and hosts than the workers that were started have."""
    place, num_workers = WorkerPlace.from_environment(), num_devices * num_nodes
    if place is None and num_workers > 1:
        raise ConfigError(
            f"Lightning would start {num_workers} workers itself: start them with `plesio run --workers {num_workers}` "
            "or torchrun"
        )
    if place is not None and (num_devices, num_nodes) != (place.local_workers, place.num_hosts):
        raise ConfigError(
            f"{place.num_workers} workers were started, {place.local_workers} on a host, and Lightning has "
            f"devices={num_devices}, num_nodes={num_nodes}: write devices={place.local_workers}, "
            f"num_nodes={place.num_hosts}"
        )


def _backend(device: torch.device) -> str:
    return "gloo" if device.type == "cpu" else ALL_DEVICES


def _scaler(precision: Any) -> torch.amp.GradScaler | None:
    return getattr(precision, "scaler", None)
