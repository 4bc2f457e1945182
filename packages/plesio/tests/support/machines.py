"""Machines of policies, without a world."""

from plesio.policies import Joined, Machine, Policy

__all__ = ["start"]


def start(policy: Policy, *, num_workers: int) -> Machine:
    """The policy's machine, which these workers have joined."""
    machine = policy.start()
    for worker in range(num_workers):
        machine.handle(Joined(worker=worker))
    return machine
