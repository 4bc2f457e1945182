"""What workers must agree on to take part in one run."""

from plesio.policies import Policy
from plesio.protocol.to_server import Join, Saving

__all__ = ["disagreement"]


def disagreement(join: Join, *, policy: Policy, layout: str, saving: Saving | None, late: bool) -> str | None:
    """Why this worker cannot take part, in words for it and the others; None if it can.

    Args:
        join: What it says.
        policy: The others'.
        layout: Digest of their models' tensors.
        saving: What they say of checkpoints.
        late: Whether it joins a run that is under way: it goes on from where that is, whatever is in the folder.
    """
    if join.policy != policy.spec:
        return f'this worker runs policy "{join.policy}", the others "{policy.spec}"; use one for all'
    if join.layout != layout:
        return "this worker's model differs from the others' (names, shapes, dtypes, or the number of servers)"
    if join.saving == saving:
        return None
    if late and _how_often(join.saving) == _how_often(saving):
        return None
    here, there = (0 if one is None else one.clock for one in (join.saving, saving))
    if here != there:
        return (
            f"this worker goes on from step {here}, the others from step {there}: all must see the same folder of "
            "checkpoints"
        )
    return "this worker's checkpoints differ from the others' (whether there are any, and how often)"


def _how_often(saving: Saving | None) -> tuple[float | None, int | None] | None:
    return None if saving is None else (saving.every_s, saving.every_steps)
