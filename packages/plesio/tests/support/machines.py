"""Machines of policies, without a world."""

from plesio.policies import Joined, Policy, PolicyMachine


def start(policy: Policy, *, num_workers: int) -> PolicyMachine:
    """The policy's machine, which these workers have joined."""
    machine = policy.start()
    for worker in range(num_workers):
        machine.handle(Joined(worker=worker))
    return machine
