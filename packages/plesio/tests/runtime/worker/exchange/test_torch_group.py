"""A group that is called off raises from every operation that begins afterwards: nothing else would wake its caller."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from plesio.runtime.worker.exchange.group import CutOffError, TorchGroup
from plesio.testing import LocalJob

OPERATIONS: dict[str, Callable[[TorchGroup], object]] = {
    "broadcast": lambda group: group.broadcast(torch.zeros(1)),
    "all_reduce": lambda group: group.all_reduce(torch.zeros(1)).wait(),
    "all_gather": lambda group: group.all_gather(torch.zeros(1)).wait(),
    "all_to_all": lambda group: group.all_to_all(torch.zeros(1, 1)).wait(),
    "split": lambda group: group.split([[0]]),
}


def begins(operation: Callable[[TorchGroup], object], group: TorchGroup) -> bool:
    try:
        operation(group)
    except CutOffError:
        return False
    return True


def call_off() -> tuple[list[str], list[str], bool]:
    """Return the operations that begin before a group is called off and after, and whether a part can be made then."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    group = TorchGroup(dist.group.WORLD)
    part = group.split([[0]])
    assert part is not None
    before = [name for name, operation in OPERATIONS.items() if begins(operation, group) and begins(operation, part)]
    group.abort()
    after = [name for name, operation in OPERATIONS.items() if begins(operation, group) or begins(operation, part)]

    @contextlib.contextmanager
    def called_off() -> Iterator[None]:
        yield
        late.abort()

    late = TorchGroup(dist.group.WORLD, connecting=called_off)
    made = begins(OPERATIONS["split"], late)
    dist.destroy_process_group()
    return before, after, made


def test_what_begins_when_the_group_is_called_off_raises_and_a_part_that_was_being_made_is_not_handed_out():
    """The part's connections were not known when those of the group were ended: nobody would be woken in it."""
    with LocalJob(1) as job:
        [ending] = job.run(Path(__file__), "call_off", timeout_s=60).values()
    assert ending.value == (list(OPERATIONS), [], False), ending.trace
