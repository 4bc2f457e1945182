"""What workers must agree on to take part in one run."""

from plesio.policies import Policy
from plesio.protocol.to_server import Join

__all__ = ["disagreement"]


def disagreement(join: Join, *, policy: Policy, layout: str) -> str | None:
    """Why this worker cannot take part, in words for it and the others; None if it can.

    Args:
        join: What it says.
        policy: The others'.
        layout: Digest of their models' tensors.
    """
    if join.policy != policy.spec:
        return f'this worker runs policy "{join.policy}", the others "{policy.spec}"; use one for all'
    if join.layout != layout:
        return "this worker's model differs from the others' (names, shapes, dtypes, or the number of servers)"
    return None
