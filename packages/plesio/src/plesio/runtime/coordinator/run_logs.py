"""The logs that server 0 writes of a run, beside its results."""

from collections.abc import Callable
from pathlib import Path

from plesio.core.clock import Clock
from plesio.core.trace import TraceWriter
from plesio.policies import Policy
from plesio.policies.log_writer import LogWriter

__all__ = ["RunLogs"]


class RunLogs:
    """The logs of one run.

    Args:
        folder: Where they are written; None for nowhere.
        limit_bytes: Limit of the policy's log on the disk.
        clock: For the trace; None is the machine's.
        on_failure: Called with a sentence, once for each log, when it cannot be written.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        policy: Policy,
        limit_bytes: int,
        clock: Clock | None,
        on_failure: Callable[[str], None],
    ) -> None:
        events, trace = (None, None) if folder is None else (folder / "events.jsonl", folder / "coordinator.jsonl")
        self.events = LogWriter(events, policy=policy, limit_bytes=limit_bytes, on_failure=on_failure)
        """The policy's events and answers."""
        header = {"worker": None, "policy": policy.title}
        self.trace = TraceWriter(trace, header=header, on_failure=on_failure, clock=clock)
        """Applied and refused updates, and changes of the membership and of the policy."""

    def close(self) -> None:
        """Close both; may be called twice."""
        self.trace.close()
        self.events.close()
