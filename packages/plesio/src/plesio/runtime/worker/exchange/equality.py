"""Finds out a replica that has become another than those of the other workers.

Where a collective has all workers at one place with equal replicas (`HeldSteps`), they gather a number for each
parameter, the sum of its bits, and the learning rates. Sums of integers do not depend on their order, so equal
parameters have equal sums on every machine. Where they differ, a second row has the parameters' sums and sums of
squares: machines of different kinds round differently, which is a line in ``fallbacks``, and anything larger is an
error. All workers compare the same rows, so all come to the same verdict. In the virtual world, whose collectives are
sums among threads, nothing is compared.
"""

from collections.abc import Callable

import torch
from msgspec import UNSET, UnsetType

from plesio.core.errors import ExchangeError
from plesio.runtime.worker.exchange.exchange import HeldSteps
from plesio.runtime.worker.exchange.group import Group, LiveGroup, TorchGroup
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.island import together

ROUNDING = 1e-3
"""Relative difference of a parameter that rounding on unlike processors stays below and a lost step exceeds."""
RATE_ROUNDING = 1e-9
_OWN_AVERAGES = (
    ". Averaged weights are each worker's own here: swap them in and out within the function that session.evaluate "
    "calls, or let that evaluate the averaged model"
)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Equality:
    """Compares replicas and learning rates of the workers of a collective."""

    def __init__(
        self,
        replica: Replica,
        *,
        group: LiveGroup,
        held_steps: Callable[[], HeldSteps | None],
        warn: Callable[[str], None],
    ) -> None:
        self._replica, self._group, self._held_steps, self._warn = replica, group, held_steps, warn
        self._began_in: Group | None = None

    def stepped(self) -> None:
        """Compare after the first step of a group that leaves replicas equal; ExchangeError if they are not."""
        group = self._group.current
        if group is not self._began_in and (not isinstance(group, TorchGroup) or self.compare()):
            self._began_in = group

    def compare(self, *, own_averages: bool = False) -> bool:
        """Compare, if replicas are to be equal now, which all workers know alike; returns whether they are to be.

        With ``own_averages`` each worker's averaged weights are others, and may be in the model by mistake.
        """
        held, group = self._held_steps(), self._group.current
        if not isinstance(group, TorchGroup) or held is None or held.settled != held.counted:
            return False
        together(self._replica.island, lambda: self._compare(group, held, own_averages=own_averages))
        return True

    def _compare(self, group: TorchGroup, held: HeldSteps, *, own_averages: bool) -> None:
        group.meet()
        rows = torch.stack(group.all_gather(self._bits()).wait()).cpu()
        if bool((rows == rows[0]).all()):
            return
        values = torch.stack(group.all_gather(self._values()).wait()).cpu()
        clock, first = held.counted, self._group.workers[0]
        for rank, row in enumerate(values[1:], start=1):
            apart = _apart(values[0], row, num_rates=len(self._rates()))
            if apart is not None:
                problem = self._problem(apart, values[0], row, first, self._group.workers[rank], clock)
                raise ExchangeError(problem + (_OWN_AVERAGES if own_averages and apart >= len(self._rates()) else ""))
        self._warn(
            f"replicas differ by rounding after step {clock} ({ROUNDING:g} of a parameter at most), as they do where "
            "workers have different processors"
        )

    def at_end(self) -> dict[str, int] | UnsetType:
        """Return a number for each parameter and rate, for the run's records to compare if replicas are to be equal."""
        held = self._held_steps()
        if not isinstance(self._group.current, TorchGroup) or held is None or held.settled != held.counted:
            return UNSET
        rates = [f"the learning rate of group {number}" for number in range(len(self._rates()))]
        return dict(zip([*self._whole(), *rates], self._bits().tolist(), strict=True))

    def _whole(self) -> dict[str, torch.Tensor]:
        """Return the parameters that are to be equal: of an island's rank its parts; none of a replica that is cut."""
        return {} if self._replica.is_cut else self._replica.local_parameters()

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self._replica.optimizer.param_groups if "lr" in group]

    def _bits(self) -> torch.Tensor:
        rates = torch.tensor(self._rates(), dtype=torch.float64, device=self._replica.device)
        return torch.stack([*map(_sum_of_bits, self._whole().values()), *rates.view(torch.int64)])

    def _values(self) -> torch.Tensor:
        """Return the learning rates; then for each parameter its sum, its sum of squares, and its size."""
        device = self._replica.device
        numbers = list(torch.tensor(self._rates(), dtype=torch.float64, device=device))
        for parameter in self._whole().values():
            wide = parameter.double()
            numbers += [wide.sum(), wide.square().sum(), torch.tensor(float(wide.numel()), device=device).double()]
        return torch.stack(numbers)

    def _problem(
        self, place: int, values: torch.Tensor, others: torch.Tensor, first: int, other: int, clock: int
    ) -> str:
        rates = self._rates()
        if place >= len(rates):
            name = list(self._whole())[(place - len(rates)) // 3]
            return (
                f'"{name}" differs on workers {first} and {other} after step {clock}, where it is to be equal: '
                "something changes parameters, gradients or options on some workers alone (do the same on all), or "
                "gradients were not averaged (under bsp, make one backward() of all losses of a forward pass)"
            )
        return (
            f"the learning rate of group {place} is {float(values[place])!r} on worker {first} and "
            f"{float(others[place])!r} on worker {other} after step {clock}: a schedule goes by what workers do not "
            "have in common; give all the same (session.evaluate returns one metric to all)"
        )


def _apart(one: torch.Tensor, other: torch.Tensor, *, num_rates: int) -> int | None:
    """Find the first place in which two workers' values differ by more than rounding."""
    for place in range(num_rates):
        if abs(one[place] - other[place]) > RATE_ROUNDING * abs(one[place]):
            return place
    for place in range(num_rates, len(one), 3):
        (total, square, size), (total_of_other, square_of_other, _) = one[place : place + 3], other[place : place + 3]
        # a sum of n numbers is at most sqrt(n) times their norm, so both bounds are shares of the parameter's size
        if abs(square - square_of_other) > ROUNDING * square or abs(total - total_of_other) > ROUNDING * (
            (size * square) ** 0.5
        ):
            return place
    return None


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)
