"""FSDP's traffic between the threads of the virtual world, whose replicas stay whole.

For each section of the model a step has the collectives of FSDP2: its parameters are gathered before the forward pass,
and, except for the root, again before the backward pass; its gradient is reduce-scattered behind that. Here they run
after the backward pass, as all exchanges of this world do, and none of them overlaps with computing; on CPUs FSDP2's do
not either.

The reduce-scatter is real: each part goes to its rank, which adds parts up in the order of the ranks. FSDP2 steps with
the parts and gathers the parameters before the next forward pass; here the parts are gathered, and every replica steps
from them. That is as many bytes, and the same numbers as under BSP. Memory in parts is not modelled.
"""

import math

import torch
from torch import Tensor, nn

from plesio.runtime.worker.exchange.exchange import Participant, StepProgress
from plesio.runtime.worker.exchange.flat import flat_of, write_parts
from plesio.runtime.worker.exchange.sections import Section, check_sections, sections_of
from plesio.runtime.worker.exchange.synchronous import SynchronousExchange


class ShardedMeanExchange(SynchronousExchange):
    """Averages gradients as a reduce-scatter and two gatherings of each section do."""

    def __init__(self, own: Participant, *, blocks: tuple[str, ...], mirror: int) -> None:
        super().__init__(own)
        self._mirror = mirror
        self._sections = sections_of(own.replica.model, blocks)
        check_sections(own.replica, self._sections)

    def step(self, progress: StepProgress) -> None:
        super().step(progress)
        if self._mirror and progress.clock % self._mirror == 0 and self._group.size > 1:
            begun_s = self._timeline.now_s()
            self._send_part()
            self._timeline.blocked(begun_s, self._timeline.now_s(), clock=progress.clock)

    def _send_part(self) -> None:
        """Send as much as a part of parameters and optimizer state is, as if to the next rank."""
        state = self._replica.optimizer.state
        whole = [parameter for section in self._sections for parameter in section.parameters]
        remembered = [value for one in whole for value in state.get(one, {}).values() if isinstance(value, Tensor)]
        numel = sum(tensor.numel() for tensor in (*whole, *remembered) if tensor.dim())
        others = self._group.size * (self._group.size - 1)  # of a gathering each rank sends that many times its own
        self._group.all_gather(whole[0].new_zeros(math.ceil(numel / others))).wait()

    @torch.no_grad()
    def reduce(self, progress: StepProgress) -> bool:
        begun_s = self._timeline.now_s()
        for section in self._sections:
            if section.parameters:
                self._exchange(section)
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=progress.clock)
        return super().reduce(progress)

    def _exchange(self, section: Section) -> None:
        num_ranks = self._group.size
        held = section.part_numel(num_ranks) - section.part_numel(num_ranks, trained=True)
        trained = [parameter for parameter in section.parameters if parameter.requires_grad]
        mean = self._reduce_scatter(section, trained)
        sent = torch.cat([mean, mean.new_zeros(held)])  # what is not trained is gathered with the rest
        gathered = self._group.all_gather(sent).wait()
        if not section.is_root:
            self._group.all_gather(sent).wait()
        flat = torch.cat([part[: mean.numel()] for part in gathered])
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]  # all are filled in
        write_parts(flat[: sum(gradient.numel() for gradient in gradients)], gradients)

    def _reduce_scatter(self, section: Section, trained: list[nn.Parameter]) -> torch.Tensor:
        """Return this rank's part of the mean gradient; empty for a section that trains nothing."""
        num_ranks = self._group.size
        numel = section.part_numel(num_ranks, trained=True)
        if not trained:
            return next(iter(section.parameters)).new_empty(0)
        for parameter in trained:
            if parameter.grad is None:  # others may have used it
                parameter.grad = torch.zeros_like(parameter)
        rows = trained[0].new_zeros(num_ranks * numel)
        flat = flat_of([parameter.grad for parameter in trained if parameter.grad is not None])
        rows[: flat.numel()] = flat.div_(num_ranks)
        return torch.stack(self._group.all_to_all(rows.view(num_ranks, numel)).wait()).sum(0)
