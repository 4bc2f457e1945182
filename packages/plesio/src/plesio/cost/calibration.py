"""The measurements of `plesio lab calibrate` on a machine, and the predictions that follow from them.

Theory. A worker's exchange with a server (a push and the pull that follows) takes the processor of the worker and that
of the server, one after the other, and two messages' way between them. All three are lines in the size S of the
parameters:

    worker   pack(S) + unpack(S)        = 2 (pack_s + S / pack_bytes_per_s)
    server   serve(S) + serve(request)  = 2 serve_s + S / serve_bytes_per_s
    way      what is left of the measured time, in both directions

Threads that send overlap with others that compute, so at the task's own size the three are made to add up to the
measured time: where the processors' times are more than it, both count by the same share less. The worker's contains a
step's end, which is charged by itself and therefore taken off. The way is as long for all sizes.

The processors' work was measured as their own time, so it is right also where there are more workers and servers
than cores. Then they share them (`plesio.sim.sharing`); how many cores' worth of work the machine does for so many at
once was measured too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from plesio.core.errors import ConfigError, DataError
from plesio.core.files import reason_of
from plesio.core.records import from_values, to_values
from plesio.core.results import Environment
from plesio.cost.cluster import Cluster
from plesio.cost.fit import AlphaBeta, LineFit, alpha_beta_of_all_reduce, fit_line
from plesio.cost.host_costs import HostCosts
from plesio.cost.link import Link

CALIBRATION_SCHEMA_VERSION = 1
_MOST_BYTES_PER_S = 1e12
"""Bandwidth of a way whose time does not depend on the size."""


Where = Literal["here", "apart", "testbed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCurve:
    """Measured values by size, and the line through them.

    Attributes:
        points: Pairs of size and value (a median, where it is a time).
    """

    points: tuple[tuple[float, float], ...]
    fit: LineFit

    @classmethod
    def of(cls, points: Mapping[float, float]) -> Self:
        """Fit the curve through these values by size, of which there are three or more, all positive."""
        return cls(points=tuple(points.items()), fit=fit_line(list(points), list(points.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A machine, as one task's workers have it.

    Attributes:
        num_workers: Workers that exchanged, on this machine.
        cores: Cores' worth of work that it does when all workers compute at once.
        gradient: Seconds that a batch and its gradient take, by samples, alone on the machine.
        gradient_cv: Their standard deviation over their mean.
        memory: Peak bytes of a worker, by samples.
        step_s: Seconds for what follows a gradient: the optimizer, the records.
        all_reduce: Seconds among the workers, by bytes.
        worker: Processor seconds of a worker for an exchange with a server, by bytes of the parameters.
        message_s: Processor seconds of a worker for an exchange with one server more, besides the bytes.
        exchange: Seconds that the exchange takes a worker, by bytes.
    """

    task: str
    batch_size: int
    num_parameters: int
    num_workers: int
    num_cores: int
    cores: float
    gradient: SizeCurve
    gradient_cv: float
    memory: SizeCurve
    step_s: float
    all_reduce: SizeCurve
    worker: SizeCurve
    server: SizeCurve
    message_s: float
    exchange: SizeCurve
    environment: Environment

    @property
    def ring(self) -> AlphaBeta:
        """Latency and bandwidth of a step of the ring that the all-reduce is taken for."""
        return alpha_beta_of_all_reduce(self.all_reduce.fit, num_ranks=self.num_workers)

    def check_task(self, name: str, *, num_parameters: int) -> None:
        """Raise `ConfigError` unless it is of this task, with these options."""
        if name != self.task:
            raise ConfigError(f"the calibration is of task {self.task}, and not of {name}; plesio lab calibrate {name}")
        if num_parameters != self.num_parameters:
            raise ConfigError(
                f"the calibration is of a model with {self.num_parameters:,} parameters, this {name} has "
                f"{num_parameters:,}; calibrate with the recipe (plesio lab calibrate RECIPE.toml)"
            )

    def check_workers(self, count: int) -> None:
        """Raise `ConfigError` unless it says what so many workers on this machine take."""
        if count != self.num_workers:
            raise ConfigError(
                f"the calibration is of {self.num_workers} workers on one machine, not of {count}; "
                f"plesio lab calibrate --workers {count}, or name a --cluster"
            )

    def costs(self, batch_size: int, *, where: Where = "here") -> HostCosts:
        """Return the time that workers take from their hosts' processors.

        Args:
            batch_size: Samples in a worker's step.
            where: ``here``, all are on this machine and share its cores, and an all-reduce takes what it took here;
                ``apart``, each has a core of such a machine, and the cluster's links say what an all-reduce takes;
                ``testbed``, the cluster's hosts are on this machine, and an all-reduce takes besides what it takes
                here for the smallest tensors.
        """
        worker, server = self._on_path(self.worker.fit), self._on_path(self.server.fit)
        # a session's step is in what the exchange took the worker, and is charged by itself
        pack_s = max(0.0, worker[0] - self.step_s) / 2
        costs = HostCosts(
            pack_s=pack_s,
            pack_bytes_per_s=_rate(worker[1] / 2),
            message_s=self.message_s / 2,
            serve_s=server[0] / 2,
            serve_bytes_per_s=_rate(server[1]),
            step_s=self.step_s,
            gradient_s=self.gradient.fit.at(batch_size),
            memory_bytes=round(self.memory.fit.at(batch_size)),
        )
        if where == "apart":
            return costs
        if where == "testbed":
            return replace(costs, collective_s=max(0.0, self.all_reduce.fit.intercept))
        return replace(
            costs,
            cores=self.cores,
            all_reduce_s=self.all_reduce.fit.intercept,
            all_reduce_bytes_per_s=_rate(self.all_reduce.fit.slope),
        )

    def _on_path(self, fit: LineFit) -> tuple[float, float]:
        """Return the part of a processor's time that an exchange waits for.

        Threads that send while others compute overlap.
        """
        work_s, took_s = self._work_s(), self._took_s()
        share = min(1.0, took_s / work_s)
        return share * fit.intercept, share * fit.slope

    def _size(self) -> int:
        return 4 * self.num_parameters

    def _work_s(self) -> float:
        return self.worker.fit.at(self._size()) + self.server.fit.at(self._size())

    def _took_s(self) -> float:
        return self.exchange.fit.at(self._size())

    def cluster(self, num_workers: int | None = None) -> Cluster:
        """Describe this machine as a cluster of one host; its steps are paced, so each worker has a core for them."""
        count = num_workers or self.num_workers
        way_s = max(0.0, self._took_s() - self._work_s())
        return Cluster(
            name="this machine",
            hosts=1,
            workers_per_host=count,
            cores_per_host=count,
            local=Link(latency_s=way_s / 2, bytes_per_s=_MOST_BYTES_PER_S),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values."""
        return {"schema": CALIBRATION_SCHEMA_VERSION, **to_values(self)}

    def write(self, path: Path) -> None:
        """Write the calibration to a JSON file, or raise `DataError`."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write the calibration {path}: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a calibration that `write` wrote; raise `DataError` if the file is missing, or is none."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"there is no calibration {path}; plesio lab calibrate writes one") from None
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the calibration {path}: {reason_of(error)}") from None
        if not isinstance(data, dict) or data.pop("schema", None) != CALIBRATION_SCHEMA_VERSION:
            raise DataError(
                f"{path} is no calibration of schema {CALIBRATION_SCHEMA_VERSION}; plesio lab calibrate makes one"
            )
        try:
            calibration: Self = from_values(data, cls)
        except DataError as error:
            raise DataError(f"{path} is no calibration: {error}; plesio lab calibrate makes one") from None
        return calibration


def _rate(seconds_per_byte: float) -> float:
    return _MOST_BYTES_PER_S if seconds_per_byte * _MOST_BYTES_PER_S < 1 else 1 / seconds_per_byte
