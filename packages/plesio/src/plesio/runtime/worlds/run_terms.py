"""The terms on which a worker joins a run."""

from dataclasses import dataclass
from pathlib import Path

from plesio.policies import Policy
from plesio.protocol.figures import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The terms on which a worker joins a run.

    Attributes:
        folder: Takes traces and results; None for nowhere.
        snapshot_every: Samples between two snapshots.
        elastic: Whether workers of a collective go on without one that is lost.
        log_bytes: The most that the policy's log may take on the disk.
        total_samples: Samples of the whole training, if they are known.
    """

    policy: Policy
    info: RunInfo
    folder: Path | None
    snapshot_every: int | None
    elastic: bool
    log_bytes: int
    total_samples: int | None
