"""What workers must agree on to take part in one run."""

from collections.abc import Sequence
from itertools import zip_longest

from plesio.policies import Policy
from plesio.protocol.to_server import Join, Saving

__all__ = ["disagreement"]


def disagreement(
    join: Join,
    worker: int,
    *,
    policy: Policy,
    alike: tuple[str, ...],
    saving: Saving | None,
    late: bool,
) -> str | None:
    """Why a worker cannot take part, in words for it and the others; None if it can.

    Args:
        join: What it says.
        worker: Its number.
        policy: The others'.
        alike: Digest of their models' tensors, then class and settings of their optimizers.
        saving: What they say of checkpoints.
        late: Whether it joins a run that is under way: it goes on from where that is, whatever is in the folder.
    """
    if join.policy != policy.spec:
        return f'worker {worker} runs policy "{join.policy}", the others "{policy.spec}"; use one for all'
    layout, *optimizer = alike
    if join.layout != layout:
        return f"worker {worker}'s model differs from the others' (names, shapes, dtypes, or the number of servers)"
    if (differs := _unlike(join.optimizer, optimizer, late=late)) is not None:
        return f"the optimizer of worker {worker} has {differs}; make the same on all workers"
    if join.saving == saving:
        return None
    if late and _how_often(join.saving) == _how_often(saving):
        return None
    here, there = (0 if one is None else one.clock for one in (join.saving, saving))
    if here != there:
        return (
            f"worker {worker} goes on from step {here}, the others from step {there}: all must see the same folder of "
            "checkpoints"
        )
    return f"worker {worker}'s checkpoints differ from the others' (whether there are any, and how often)"


def _unlike(here: Sequence[str], there: Sequence[str], *, late: bool) -> str | None:
    """Return the first difference. A worker that joins late may have other values: a policy can have changed them."""
    for own, others in zip_longest(here, there, fillvalue="no more options"):
        if own != others and not (late and "=" in own and "=" in others):
            return f"{own}, the others {others}"
    return None


def _how_often(saving: Saving | None) -> tuple[float | None, int | None] | None:
    return None if saving is None else (saving.every_s, saving.every_steps)
