"""The cases that are compared: each schedule, its runner, and its micro-batches an update."""

from dataclasses import dataclass
from typing import Literal

from plesio_planning.sim.pipeline_schedules import Schedule

Runner = Literal["plesio", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One schedule on K stages.

    Attributes:
        runner: `plesio.grid`, or torch.distributed.pipelining.
        setting: Of a grid, behind its shape; of torch the schedule's name.
        rounds: Micro-batches of an update over K; 0 for one micro-batch an update.
    """

    name: str
    runner: Runner
    setting: str
    rounds: int = 0

    def micro_batches(self, stages: int) -> int:
        """m, of an update."""
        return self.rounds * stages or 1

    def grid(self, stages: int) -> str:
        """Write the grid's text."""
        each = f",micro_batches={self.micro_batches(stages)}" if self.rounds else ""
        return f"1x{stages},{self.setting}{each}"

    @property
    def schedule(self) -> Schedule:
        """The schedule of a case that is simulated."""
        assert self.runner == "torch"
        return self.setting  # type: ignore[return-value]

    def words(self, stages: int) -> str:
        """Its name, with m."""
        return f"{self.name}, m = {self.micro_batches(stages)}" if self.rounds else self.name

    @property
    def synchronous(self) -> bool:
        """True if an update waits for all that is under way: the numbers of plain training."""
        return self.runner == "torch" or "schedule=gpipe" in self.setting or "schedule=1f1b" in self.setting


SEQUENTIAL = Case(name="sequential", runner="plesio", setting="delay=0")
DECOUPLED = tuple(Case(name=f"decoupled, delay {d}", runner="plesio", setting=f"delay={d}") for d in (1, 2, 3))
GPIPE = Case(name="GPipe", runner="torch", setting="gpipe", rounds=1)
WIDE_GPIPE = Case(name="GPipe", runner="torch", setting="gpipe", rounds=4)
ONE_F_ONE_B = Case(name="1F1B", runner="torch", setting="1f1b", rounds=4)
INTERLEAVED = Case(name="interleaved 1F1B", runner="torch", setting="interleaved", rounds=4)
NARROW_INTERLEAVED = Case(name="interleaved 1F1B", runner="torch", setting="interleaved", rounds=1)
ZBV = Case(name="ZB-V", runner="torch", setting="zbv", rounds=4)
OUR_GPIPE = Case(name="GPipe (Plesio's)", runner="plesio", setting="schedule=gpipe", rounds=1)
OUR_WIDE_GPIPE = Case(name="GPipe (Plesio's)", runner="plesio", setting="schedule=gpipe", rounds=4)
OUR_1F1B = Case(name="1F1B (Plesio's)", runner="plesio", setting="schedule=1f1b", rounds=4)
TWO_BW = Case(name="PipeDream-2BW", runner="plesio", setting="schedule=2bw", rounds=1)

CASES = (
    SEQUENTIAL, GPIPE, OUR_GPIPE, WIDE_GPIPE, OUR_WIDE_GPIPE, ONE_F_ONE_B, OUR_1F1B, INTERLEAVED, ZBV, TWO_BW,
    *DECOUPLED,
)  # fmt: skip
