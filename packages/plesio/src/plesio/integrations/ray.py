"""Ray Train on sessions: `PlesioConfig` as the ``torch_config`` of Ray's ``TorchTrainer``.

Ray starts the workers and ranks them; here they get torchrun's variables, so that `plesio.join` makes one run of them.
The job's key-value store is in the process of Ray's controller, as torchrun has it in its agent's. Ray's own process
group is not made: a session makes the one that its policy needs.

When a worker fails Ray ends all of them, and starts all again as often as ``FailureConfig`` says: each time with a new
store and a new secret. They go on from a checkpoint of `plesio.join`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.train
import ray.util
from ray.train.backend import Backend
from ray.train.torch import TorchConfig

from plesio.policies import Policy, parse_policy
from plesio.runtime.job_store import listen, serve_store
from plesio.runtime.transport.job_secret import SECRET_VARIABLE, new_job_secret
from plesio.runtime.worker.environment import POLICY_VARIABLE

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


class PlesioConfig(TorchConfig):
    """A ``torch_config`` under which the workers of a ``TorchTrainer`` join one run by `plesio.join`.

    Args:
        policy: For a `plesio.join` that names none, as there.

    Raises:
        PolicySpecError: The policy has no text, or one that cannot be read: give it to `plesio.join`.
    """

    def __init__(self, policy: Policy | str = "adaptive") -> None:
        super().__init__()
        self.policy = parse_policy(policy if isinstance(policy, str) else policy.spec).spec

    @property
    def backend_cls(self) -> type[Backend]:
        return _PlesioBackend


class _PlesioBackend(Backend):
    """Has the job's store in the controller's process, and tells the workers of it."""

    share_cuda_visible_devices = True

    def __init__(self) -> None:
        self._store: TCPStore | None = None

    def on_training_start(self, worker_group: Any, backend_config: PlesioConfig) -> None:
        places = worker_group.execute(_place)
        with listen(0, address=ray.util.get_node_ip_address()) as listener:
            master = listener.getsockname()
            self._store = serve_store(listener, num_workers=len(places))
        common = {SECRET_VARIABLE: new_job_secret(), POLICY_VARIABLE: backend_config.policy}
        own = enumerate(_environments(places, master=master))
        ray.get([worker_group.execute_single_async(at, _enter, {**common, **one}) for at, one in own])

    def on_shutdown(self, worker_group: Any, backend_config: PlesioConfig) -> None:
        self._store = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A worker's rank, and how many workers its host has."""

    rank: int
    local_workers: int


def _place() -> _Place:
    """Return the place of the worker that runs this."""
    context = ray.train.get_context()
    return _Place(context.get_world_rank(), context.get_local_world_size())


def _enter(variables: Mapping[str, str]) -> None:
    """Put them into the environment of the worker that runs this."""
    os.environ.update(variables)


def _environments(places: Sequence[_Place], *, master: tuple[str, int]) -> list[dict[str, str]]:
    """Return torchrun's variables for each of the workers, whose ranks follow each other on a host.

    Ray fills hosts as it finds room, and a job has equally many workers on each: a host with more counts as several.
    """
    local_workers = math.gcd(*(place.local_workers for place in places))
    address, port = master
    return [
        {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(place.rank % local_workers),
            "LOCAL_WORLD_SIZE": str(local_workers),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        for place in places
    ]
