"""The whole network, of which each worker trains a stage: put together of all workers' stages, and evaluated."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from plesio.policies.grid import GridSetting
from plesio.runtime.worker.evaluation import evaluation_mode
from plesio.runtime.worker.exchange.replica import State, parameters_sha256


class WholeNetwork:
    """The whole network, of which every worker has the layers and the collector the use.

    Args:
        ends: After how many layers each but the last ends.
    """

    def __init__(self, layers: nn.Sequential, stages: Sequence[nn.Module], *, ends: Sequence[int]) -> None:
        self.layers = layers
        self.ends = tuple(ends)
        self._names = [list(_named(stage)) for stage in stages]

    @contextmanager
    def loaded(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """Put ``state`` into the layers, in evaluation mode and without gradients; afterwards all is as before."""
        own = _named(self.layers)
        before = {name: tensor.detach().clone() for name, tensor in own.items()}
        self._write(own, state)
        try:
            with evaluation_mode(self.layers):
                yield
        finally:
            self._write(own, before)

    def keep(self, state: Mapping[str, Tensor]) -> None:
        self._write(_named(self.layers), state)

    @torch.no_grad()
    def _write(self, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def whole(self, states: Mapping[int, Sequence[Tensor]], setting: GridSetting) -> tuple[State, float]:
        """Combine the states of all workers, by rank: the mean over the groups, and their distance from it.

        A group that was not there yet as a whole, some of whose stages have an empty state, does not count.

        Returns:
            The state, and the mean over the groups of the squared distance of their parameters and floating-point
            buffers from the mean's.
        """
        partial = {rank // setting.stages for rank, tensors in states.items() if not tensors}
        groups = sorted({rank // setting.stages for rank in states} - partial)
        state: State = {}
        distance = 0.0
        for stage, names in enumerate(self._names):
            for place, name in enumerate(names):
                copies = [states[group * setting.stages + stage][place] for group in groups]
                if len(copies) == 1 or not copies[0].is_floating_point():
                    state[name] = copies[0].clone()
                    continue
                stacked = torch.stack(copies)
                state[name] = stacked.mean(0)
                distance += float((stacked - state[name]).square().sum()) / len(groups)
        return state, distance

    def as_state_dict(self, state: State) -> State:
        """Return the network's own `state_dict`: shared weights under each name, no buffers that are not kept."""
        names = {id(tensor): name for name, tensor in _named(self.layers).items()}
        own = self.layers.state_dict(keep_vars=True)
        return {name: state[names[id(tensor)]] for name, tensor in own.items() if id(tensor) in names}

    def sha256(self, state: State) -> str:
        """Hash the bytes of what is trained, in name order."""
        trained = [name for name, parameter in self.layers.named_parameters() if parameter.requires_grad]
        return parameters_sha256(trained, state)


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def state_of(stage: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in _named(stage).values()]
