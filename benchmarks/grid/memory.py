"""The memory of a stage's process while it trains, beside the network's weights."""

from cases import Case
from networks import Shape
from ours import run_grid
from rivals import run_torch

from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.memory import ProcessMemory
from plesio_planning.measured.ranks import Ranks

MICRO_BATCHES = 32


def peak_of(group: TorchGroup, *, case: Case, shape: Shape) -> int:
    """Bytes that were resident at most, less those before it began."""
    memory = ProcessMemory()
    before = memory.resident_bytes()
    if case.runner == "torch":
        each = case.micro_batches(shape.stages)
        run_torch(group, shape=shape, schedule=case.setting, micro_batches=each, steps=max(2, MICRO_BATCHES // each))
    else:
        run_grid(group, shape=shape, setting=case.grid(shape.stages), micro_batches=MICRO_BATCHES)
    return memory.peak_bytes() - before


def network_bytes(shape: Shape) -> int:
    """Weights of all stages, which every process makes before it takes its own."""
    stages = shape.parts(per_stage=1, devices=range(shape.stages))
    return sum(weight.nbytes for stage in stages for weight in stage.parameters())


def held_by_case(case: Case, shape: Shape) -> list[int]:
    """Bytes of each stage's process, less the network's; where a device has two parts, of both."""
    with Ranks(shape.stages) as ranks:
        for _ in range(2):  # what is loaded at the first time is no part of it
            found = ranks.run(peak_of, case=case, shape=shape)
    return [num_bytes - network_bytes(shape) for num_bytes in found]
