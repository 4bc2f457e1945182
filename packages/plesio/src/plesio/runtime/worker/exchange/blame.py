"""The rank that counts a mean as refused: all ranks see that it is not finite, and none can trace it to an update."""

import torch

from plesio.runtime.worker.exchange.group import Group

__all__ = ["takes_blame"]


def takes_blame(group: Group, *, guilty: bool, device: torch.device) -> bool:
    """Decide whether this rank counts the refusal: every guilty one does, and if there is none, rank 0 for all.

    Args:
        group: The ranks, all of which call this.
        guilty: True if this rank's contribution was not finite.
        device: The device of the group's tensors.
    """
    flags = torch.tensor([1.0 if guilty else 0.0], device=device)
    group.all_reduce(flags).wait()
    return guilty or (flags.item() == 0 and group.rank == 0)
