"""The command by which more workers can join the job of `plesio run`."""

import shlex
from collections.abc import Mapping, Sequence

from plesio.policies import parse_policy
from plesio.runtime.checkpoints.setting import VARIABLE as CHECKPOINT_VARIABLE
from plesio.runtime.worker.environment import ISLAND_VARIABLE, POLICY_VARIABLE, REPLICAS_VARIABLE

_SHARED_OPTIONS = {
    "--policy": POLICY_VARIABLE,
    "--replicas": REPLICAS_VARIABLE,
    "--checkpoint": CHECKPOINT_VARIABLE,
    "--every": f"{CHECKPOINT_VARIABLE}_EVERY",
}
"""Options that must be the same for all workers of a job, by the variables that carry them."""


def trains_alone(environment: Mapping[str, str], *, num_processes: int) -> bool:
    """Tell whether the job is of one process that has no servers, so none can join it."""
    return num_processes == 1 and ISLAND_VARIABLE not in environment


def join_line(
    script: Sequence[str], *, address: str, environment: Mapping[str, str], sizes: tuple[int, ...]
) -> str | None:
    """Return the command that a newcomer's shell needs, for workers of ``sizes`` ranks; None if none can join."""
    if trains_alone(environment, num_processes=sum(sizes)):
        return None
    policy = parse_policy(environment[POLICY_VARIABLE]) if POLICY_VARIABLE in environment else None
    islands = ISLAND_VARIABLE in environment
    if policy is not None and (policy.racks_share_store or (islands and policy.exchange == "collective")):
        return None
    if islands and CHECKPOINT_VARIABLE in environment:
        return None
    options = [
        part for option, name in _SHARED_OPTIONS.items() if name in environment for part in (option, environment[name])
    ]
    if islands:
        options += ["--workers", str(sizes[0]), "--island", str(sizes[0])]
    return shlex.join(["plesio", "run", "--join", address, *options, *script])
