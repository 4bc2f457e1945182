"""The costs of failures: workers that go on without the one that is lost, and jobs that begin again.

*Elastic* is what Plesio does: when a worker is lost the others stand still for a moment and go on, and it comes back
some time later, until when an n-th of the throughput is missing. With m failures a second of any worker a second of
work takes

    1 / (1 - m (stall + rejoin / n))

seconds. *Gang* is what a job does whose workers can only all go on or all begin again, as under torchrun without
Plesio, and a sharded replica: each failure undoes what came after the last state, and all start anew
(`plesio.cost.goodput`, Daly 2006).

The stalls are the longest that was measured when one of four workers was killed (docs/log.md, section 47): 58 ms in
a collective, 10 ms on the store, each taken twice; `bench_recovery --join` has 0.9 s at most while one comes back.
"""

from dataclasses import dataclass
from typing import Annotated

from plesio.advisor.candidates import SHARDED
from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError
from plesio.core.within import ABOVE_0, AT_LEAST_0, AT_LEAST_1
from plesio.cost.goodput import expected_goodput
from plesio.policies import parse_policy

COLLECTIVE_STALL_S, STORE_STALL_S, JOIN_STALL_S = 0.12, 0.02, 0.9
STATE_BYTES_PER_S = 500e6
LEAST_STATE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """How often workers fail, and how long they take to come back.

    Attributes:
        mtbf_s: Mean seconds until a worker fails.
        num_workers: Each of which can.
        restart_s: Seconds until a new process is there in place of one that was lost, or all are.
        state_bytes: Bytes of parameters and optimizer, for checkpoints.
    """

    mtbf_s: Annotated[float, ABOVE_0]
    num_workers: Annotated[int, AT_LEAST_1]
    restart_s: Annotated[float, AT_LEAST_0] = 10.0
    state_bytes: Annotated[float, AT_LEAST_0] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "failures: ")

    def slowdown(self, spec: str) -> float:
        """Return how many times as long work takes with failures, if there is enough of it; inf if it never ends.

        >>> failures = FailureModel(mtbf_s=3600.0, num_workers=4)
        >>> round(failures.slowdown("bsp"), 4), round(failures.slowdown("fsdp"), 3)
        (1.0039, 1.022)
        """
        return self.gang() if spec == SHARDED else self.elastic(spec)

    def elastic(self, spec: str) -> float:
        """Return the factor on time of workers that go on without the lost one."""
        on_store = not parse_policy(spec).has_collectives
        stall_s = (STORE_STALL_S if on_store else COLLECTIVE_STALL_S) + JOIN_STALL_S
        missing = self.num_workers / self.mtbf_s * (stall_s + self.restart_s / self.num_workers)
        return 1 / (1 - missing) if missing < 1 else float("inf")

    def gang(self) -> float:
        """Return the factor on time of a job that begins again from its last state."""
        try:
            found = expected_goodput(
                self.mtbf_s,  # longer than the interval between states, so that they are written
                checkpoint_s=max(LEAST_STATE_S, self.state_bytes / STATE_BYTES_PER_S),
                restart_s=self.restart_s,
                mtbf_s=self.mtbf_s / self.num_workers,
            )
        except ConfigError:  # it would hardly ever end
            return float("inf")
        return 1 / found.share
