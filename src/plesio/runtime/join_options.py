"""What few sessions need to say: arguments of `plesio.join` that stand apart from the common ones."""

from dataclasses import dataclass, field

from plesio.policies.log_writer import LIMIT_BYTES
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.job_handle import JobHandle
from plesio.runtime.worker.pacing import Pacer

__all__ = ["JoinOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The rare arguments of `plesio.join`.

    Args:
        num_servers: Servers of the store exchange; None is one per host, under ``adaptive`` at most four, and one for
            every 16 KiB of parameters at most.
        snapshot_every: Keep the shared parameters at every so many samples, for `Session.finish` to evaluate; None
            keeps none.
        pacer: Makes steps take as long as another machine's would; None lets them take as long as they do.
        info: Names for the results, and the seed of the sample order.
        job: A job to run in; None makes one for this session.
        elastic: Workers of a collective go on without one that is lost; if not, its loss ends the run.
        log_bytes: What the policy's log (``events.jsonl``) may take on the disk; beyond it updates are left out of it.

    >>> JoinOptions(snapshot_every=10_000).num_servers is None
    True
    """

    num_servers: int | None = None
    snapshot_every: int | None = None
    pacer: Pacer | None = None
    info: RunInfo = field(default_factory=RunInfo)
    job: JobHandle | None = None
    elastic: bool = True
    log_bytes: int = LIMIT_BYTES
