"""Who is lost or joins, and when."""

from dataclasses import dataclass
from typing import Literal

from plesio.core.errors import ConfigError

__all__ = ["Fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that befalls a job.

    Attributes:
        at_s: Seconds since its beginning.
        kind: A worker is lost, or a new one joins.
        worker: Which is lost; a new worker is given the next free rank.
    """

    at_s: float
    kind: Literal["lose", "join"]
    worker: int = -1

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < float("inf"):
            raise ConfigError(f"a fault at {self.at_s} s; write 0 s or more")
        if self.kind == "lose" and self.worker < 0:
            raise ConfigError("a fault that loses a worker needs its rank: worker = 2")
