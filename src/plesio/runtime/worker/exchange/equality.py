"""Finds out a replica that has become another than those of the other workers.

Where a collective has all workers at one place with equal replicas (`Stand`), they gather a number for each parameter,
the sum of its bits, and the learning rates. Sums of integers do not depend on their order, so equal parameters have
equal sums on every machine. All workers compare the same rows, so all come to the same verdict. In the virtual world,
whose collectives are sums among threads, nothing is compared.
"""

from collections.abc import Callable

import torch

from plesio.core.errors import ExchangeError
from plesio.runtime.worker.exchange.exchange import Stand
from plesio.runtime.worker.exchange.group import Group, TorchGroup
from plesio.runtime.worker.exchange.live_group import LiveGroup
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["Equality"]

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Equality:
    """Compares replicas and learning rates of the workers of a collective.

    Args:
        replica: This worker's.
        group: The workers.
        stand: Tells which steps the replica holds.
    """

    def __init__(self, replica: Replica, *, group: LiveGroup, stand: Callable[[], Stand | None]) -> None:
        self._replica = replica
        self._group = group
        self._stand = stand
        self._began_in: Group | None = None

    def stepped(self) -> None:
        """Compare after the first step of a group that leaves replicas equal.

        Raises:
            ExchangeError: They are not.
        """
        if self._began_in is not self._group.current and self.compare():
            self._began_in = self._group.current

    def compare(self) -> bool:
        """Compare, if replicas are to be equal now, which all workers know alike; returns whether they are to be.

        Raises:
            ExchangeError: They are not.
        """
        stand, group = self._stand(), self._group.current
        if not isinstance(group, TorchGroup) or stand is None or stand.settled != stand.counted:
            return False
        names, own = self._numbers()
        rows = torch.stack(group.all_gather(own).wait()).cpu()
        for rank, place in (rows != rows[0]).nonzero().tolist()[:1]:
            first, other = self._group.workers[0], self._group.workers[rank]
            raise ExchangeError(self._problem(names[place], rows[:, place], first, other, rank, stand.counted))
        return True

    def _numbers(self) -> tuple[list[str], torch.Tensor]:
        """Of each parameter (which a sharded replica has only parts of) and each learning rate."""
        replica = self._replica
        whole = {} if replica.is_cut else replica.parameters
        rates = [float(group["lr"]) for group in replica.optimizer.param_groups if "lr" in group]
        device = next(iter(replica.parameters.values())).device
        numbers = [_sum_of_bits(parameter.detach()) for parameter in whole.values()]
        numbers += list(torch.tensor(rates, dtype=torch.float64, device=device).view(torch.int64))
        return [*whole, *(f"group {number}" for number in range(len(rates)))], torch.stack(numbers)

    def _problem(self, name: str, numbers: torch.Tensor, first: int, other: int, rank: int, clock: int) -> str:
        if name in self._replica.parameters:
            return (
                f'"{name}" differs on workers {first} and {other} after step {clock}, where it is to be equal: '
                "something changes parameters, gradients or options on some workers alone; do the same on all of them"
            )
        here, there = (float(numbers[place : place + 1].view(torch.float64)) for place in (0, rank))
        return (
            f"the learning rate of {name} is {here!r} on worker {first} and {there!r} on worker {other} after step "
            f"{clock}: a schedule goes by what workers do not have in common; give all the same (session.evaluate "
            "returns one metric to all)"
        )


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)
