"""Hugging Face Accelerate on a session: `PlesioAccelerator` in place of ``accelerate.Accelerator``.

A script keeps its lines. ``prepare`` joins, with the models and optimizers that it is given; the loop, the loaders, the
schedulers and the metrics are Accelerate's own.

Without GPUs Accelerate makes one group of the workers only if it is told to use CPUs. By itself it leaves each worker
alone, with all batches. So this module, imported by a worker on such a machine, sets ``ACCELERATE_USE_CPU``.
"""

import atexit
import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DDPCommunicationHookType, DistributedType, InitProcessGroupKwargs
from torch import nn
from torch.optim import Optimizer

from plesio.core.errors import ConfigError
from plesio.integrations.joined import ALL_DEVICES, begin, checked_policy, counted, leave, optimizers_of
from plesio.policies import Policy
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.session import Session

if WorkerPlace.from_environment() is not None and not torch.accelerator.is_available():
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")

_OURS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class PlesioAccelerator(Accelerator):
    """An `Accelerator` whose workers exchange by a policy instead of by DDP.

    Call `end_training` at the end: it closes the session, and every worker's model has the final parameters.
    `get_state_dict`, `save_state` and `save_model` give the shared parameters, so all workers call them.

    Args:
        policy: As in `plesio.join`; None for the launcher's (``plesio run --policy``), or ``adaptive,store=off``.
        trace: Folder for traces and ``results.json``; None for none.
        **settings: Those of ``Accelerator``.

    Raises:
        ConfigError: They ask for another way to exchange (DeepSpeed, FSDP, a communication hook of DDP), or for uneven
            batches; or Accelerate has left each of several workers alone.
    """

    def __init__(self, policy: Policy | str | None = None, *, trace: Path | str | None = None, **settings: Any) -> None:
        handlers = list(settings.pop("kwargs_handlers", None) or [])
        if torch.cuda.is_available() and not any(isinstance(one, InitProcessGroupKwargs) for one in handlers):
            handlers.append(InitProcessGroupKwargs(backend=ALL_DEVICES))
        super().__init__(kwargs_handlers=handlers or None, **settings)
        self._become(policy, trace)

    @classmethod
    def of(
        cls, accelerator: Accelerator, policy: Policy | str | None, *, trace: Path | str | None
    ) -> "PlesioAccelerator":
        """Return one with the settings and the state of an `Accelerator` that has prepared nothing."""
        own = cls.__new__(cls)
        own.__dict__.update(vars(accelerator))
        own._become(policy, trace)
        return own

    def _become(self, policy: Policy | str | None, trace: Path | str | None) -> None:
        self._policy, self._trace = checked_policy(policy, framework="Accelerate"), trace
        self.session: Session | None = None
        """The session, from `prepare` to `end_training`."""
        self._trained: list[nn.Module] = []
        """The models of the session, which are parts of its own one where they are several."""
        self._count: torch.utils.hooks.RemovableHandle | None = None
        if self.distributed_type not in _OURS or self.parallelism_config is not None:
            raise ConfigError(
                f"PlesioAccelerator exchanges by {self._policy.spec}, and another way is set as well "
                f"({self.distributed_type.value}): leave the plugin out, or use Accelerator"
            )
        place = WorkerPlace.from_environment()
        if self.num_processes == 1 and place is not None:
            raise ConfigError(
                f"Accelerate has left each of {place.num_workers} workers alone, with all batches: write "
                "PlesioAccelerator(..., cpu=True) or TrainingArguments(..., use_cpu=True), before anything else of "
                "Accelerate is made"
            )
        if self.num_processes > 1 and not self.even_batches:
            raise ConfigError(
                "even_batches=False gives one worker more batches than another, and the others would wait for it: "
                "leave it out"
            )
        ddp = self.ddp_handler
        if ddp is not None and (ddp.comm_hook != DDPCommunicationHookType.NO or not ddp.broadcast_buffers):
            raise ConfigError(
                "DistributedDataParallelKwargs: PlesioAccelerator has no DDP to give comm_hook or "
                "broadcast_buffers=False to; leave them out, and compress by the policy (bsp,compress=...)"
            )

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare as `Accelerator` does; where optimizers come, join with them and the models that they train.

        Raises:
            ConfigError: None of the models prepared so far is theirs, or a session is open already.
        """
        placements: list[bool | None] = [None] * len(args) if device_placement is None else [*device_placement]
        done: dict[int, Any] = {}
        for place, (one, where) in enumerate(zip(args, placements, strict=True)):
            if isinstance(one, nn.Module):
                done[place] = self.prepare_model(one, device_placement=where)
        optimizers = {place: raw for place, one in enumerate(args) if (raw := self._raw(one)) is not None}
        if optimizers:
            own = self._join(list(optimizers.values()))
            done |= dict(zip(optimizers, map(self._prepared, own), strict=True))
        rest = [place for place in range(len(args)) if place not in done]
        if rest:
            given = [placements[place] for place in rest]
            made = super().prepare(*(args[place] for place in rest), device_placement=given)
            done |= dict(zip(rest, made if len(rest) > 1 else (made,), strict=True))
        return tuple(done[place] for place in range(len(args))) if len(args) > 1 else done[0]

    def _join(self, optimizers: list[Optimizer]) -> list[Any]:
        if self.session is not None:
            raise ConfigError(
                "PlesioAccelerator.prepare has had optimizers already, and a worker is in one session at a time: "
                "prepare all of them in one call, or call free_memory() between two trainings"
            )
        held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        self._trained = [one for one in self._models if any(id(parameter) in held for parameter in one.parameters())]
        if not self._trained:
            raise ConfigError(
                "PlesioAccelerator.prepare has no model that these optimizers train: prepare the models before them or "
                "in the same call, and make the optimizers from their parameters"
            )
        model = self._trained[0] if len(self._trained) == 1 else nn.ModuleList(self._trained)
        self.session = begin(model, optimizers, policy=self._policy, trace=self._trace, scaler=self.scaler)
        self._count = counted(self.session, calls_of=self._trained[0])
        return optimizers_of(self.session)

    def _prepared(self, optimizer: Optimizer) -> "_PreparedOptimizer":
        prepared = _PreparedOptimizer(optimizer, loss_scaler=self.scaler)
        prepared._is_accelerate_prepared = True
        self._optimizers.append(prepared)
        return prepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Place and compile the model, without a wrapper."""
        prepared: nn.Module = super().prepare_model(model, device_placement=device_placement, evaluation_mode=True)
        return prepared

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Any:
        """Join, as `prepare` does."""
        return super().prepare_optimizer(optimizer) if self._raw(optimizer) is None else self.prepare(optimizer)

    def _raw(self, one: object) -> Optimizer | None:
        """Return the script's own optimizer, if this is one that is to join: a new one, or one of a closed session."""
        if self.session is None and isinstance(one, _PreparedOptimizer):
            own: Optimizer = one.optimizer.wrapped
            return own
        return one if isinstance(one, Optimizer) and not isinstance(one, AcceleratedOptimizer) else None

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Accumulate gradients on this worker in this context."""
        ours = self.session is not None and any(model is one for one in self._trained)
        with self.session.accumulate() if ours else super().no_sync(model):  # type: ignore[union-attr]
            yield

    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Any:
        """Refuse: it is for DDP."""
        raise ConfigError(
            "PlesioAccelerator has no DDP that could join_uneven_inputs: leave it out, with even_batches=True (the "
            "default) all workers have equally many batches"
        )

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Unscale the gradients of these optimizers, or all, once a step."""
        if self.scaler is None:
            return
        given = self._optimizers if optimizer is None else optimizer
        for one in given if isinstance(given, list | tuple) else [given]:
            while isinstance(one, AcceleratedOptimizer):
                one = one.optimizer
            self.scaler.unscale_(getattr(one, "wrapped", one))

    def clip_grad_norm_(self, *args: Any, **settings: Any) -> Any:
        """Clip by the norm; under ``bsp`` it is that of the mean gradient."""
        self._average()
        return super().clip_grad_norm_(*args, **settings)

    def clip_grad_value_(self, *args: Any, **settings: Any) -> None:
        """Clip the values; under ``bsp`` they are the mean gradient's."""
        self._average()
        super().clip_grad_value_(*args, **settings)

    def _average(self) -> None:
        if self.session is not None and self.sync_gradients:
            optimizers_of(self.session)[0].average()

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Put the shared parameters into every worker's model in this context; all workers enter it at one place."""
        return contextlib.nullcontext() if self.session is None else self.session.shared

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the state of the model, with the shared parameters; all workers call it."""
        copies = self.session is not None and self.session.shared.differs
        with self.shared():
            state: dict[str, Any] = super().get_state_dict(model, unwrap=unwrap)
            return copy.deepcopy(state) if copies else state

    def save_state(self, *args: Any, **settings: Any) -> Any:
        """Save the state of the run; the optimizer's is the servers', or else the first worker's."""
        with self.shared():
            saved = super().save_state(*args, **settings)
            self.wait_for_everyone()
        return saved

    def load_state(self, *args: Any, **settings: Any) -> Any:
        """Load what `save_state` has saved, before the first step.

        Raises:
            ConfigError: A step has been made.
        """
        if self.session is not None and self.session.clock:
            raise ConfigError(
                f"load_state after step {self.session.clock}: the workers have gone on from one state together; load "
                "before the first step"
            )
        return super().load_state(*args, **settings)

    def leave(self) -> None:
        """Close the session; every worker's model has the final parameters."""
        if self.session is not None:
            leave(self.session)
            self._forget()

    def fail(self, error: BaseException) -> None:
        """End the session because of ``error``; raise what explains it, if anything does."""
        session = self.session
        if session is not None:
            self._forget()
            session.__exit__(type(error), error, error.__traceback__)

    def _forget(self) -> None:
        self.session, self._trained = None, []
        if self._count is not None:
            self._count.remove()
            self._count = None

    def free_memory(self, *objects: Any) -> Any:
        """Close the session, and forget what was prepared."""
        self.leave()
        return super().free_memory(*objects)

    def end_training(self) -> None:
        """Close the session, and end the trackers; the process group stays until the process ends, for another run.

        torch may fail to make a second group at a launcher's store: a worker may find the addresses of the first there.
        """
        self.leave()
        for tracker in self.trackers:
            tracker.finish()
        atexit.register(self.state.destroy_process_group)


class _PreparedOptimizer(AcceleratedOptimizer):
    """Steps the session where gradients are in step; the session itself moves the scale of losses."""

    def __init__(self, optimizer: Optimizer, *, loss_scaler: torch.amp.GradScaler | None) -> None:
        super().__init__(optimizer, device_placement=False, scaler=None)
        self._loss_scaler = loss_scaler

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        before = 0.0 if self._loss_scaler is None else self._loss_scaler.get_scale()
        super().step(closure)
        self._is_overflow = self._loss_scaler is not None and self._loss_scaler.get_scale() < before
