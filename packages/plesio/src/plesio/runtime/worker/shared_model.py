"""The shared parameters in every worker's model at once, for frameworks that evaluate or save on all of them."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.distributed as dist

from plesio.core.errors import ConfigError
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.one_replica import OneReplica
from plesio.runtime.worker.step_times import StepTimes

__all__ = ["SharedModel"]


class SharedModel:
    """A context in which the model has the shared parameters; the worker's own come back afterwards.

    All workers enter it at the same place. The training clock is stopped meanwhile. Where nothing differs it changes
    nothing, and neither does one within another.

    Args:
        replica: The worker's.
        one_replica: Tells whether the replica may differ from the others' now; None for a worker alone.
        find: Gives the shared state on the worker that has it, and None elsewhere. All workers call it alike.
        times: The training clock's.
        meter: Has the place at which this worker is.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        one_replica: OneReplica | None,
        find: Callable[[], State | None],
        times: StepTimes,
        meter: Meter,
    ) -> None:
        self._replica, self._one_replica, self._find = replica, one_replica, find
        self._times, self._meter = times, meter
        self._has_buffers = any(True for _ in replica.model.buffers())
        self._depth = 0
        self._kept = ExitStack()

    @property
    def differs(self) -> bool:
        """True if the model may not be the shared one now: its parameters, or under any policy its buffers."""
        one_replica = self._one_replica
        return self._depth == 0 and one_replica is not None and (self._has_buffers or one_replica.is_own)

    def __enter__(self) -> None:
        """Put the shared parameters into the model.

        Raises:
            ConfigError: There is no process group of torch's to send them by, or the worker is an island.
        """
        if self.differs:
            if self._replica.island is not None:
                raise ConfigError(
                    "session.shared is for workers of one process; an island evaluates in session.evaluate"
                )
            with ExitStack() as kept:
                kept.enter_context(self._times.stopped())
                kept.enter_context(self._replica.changes.put_back())
                kept.enter_context(self._meter.within("metric"))
                kept.enter_context(self._replica.loaded(self._everywhere()))
                self._kept = kept.pop_all()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._kept.close()

    def _everywhere(self) -> State:
        """Send the state of the first worker that has one to all."""
        if not dist.is_initialized():
            raise ConfigError(
                "session.shared sends the parameters by torch's own process group, and there is none: write "
                "session.evaluate(...), or call torch.distributed.init_process_group() before plesio.join"
            )
        device = self._replica.device
        dist.all_reduce(torch.zeros((), device=device))  # all have come: what they have pushed is in the shared state
        found = self._find()
        first = torch.tensor(dist.get_rank() if found is not None else dist.get_world_size(), device=device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN)
        state = self._replica.state() if found is None else found
        for alike in by_dtype(state.values()):
            flat = flat_of(alike).to(device)
            dist.broadcast(flat, src=int(first.item()))
            write_parts(flat, alike)
        return state
