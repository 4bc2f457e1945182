"""Measurements of `plesio lab probe` between hosts, as data; `plesio.bench.probe` measures them."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from plesio.cost.topology import Rows, Topology

PROBE_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The measurements between all pairs of hosts.

    Attributes:
        topology: Every pair alone, the racks, and what they have between them with all pairs at once.
        contended_bytes_per_s: Bandwidth of every pair, while it and all others sent both ways: the geometric mean of
            two times.
        num_at_once: Pairs of each rack that were measured at the same time.
        num_alone: Pairs that were measured alone.
    """

    topology: Topology
    contended_bytes_per_s: Rows
    num_at_once: tuple[int, ...]
    num_alone: int
    wall_s: float

    def oversubscription(self, rack: int) -> float:
        """Return the bandwidth of a rack's interfaces over that of its uplink; 1 and less is enough for all."""
        best = self.topology.matrix.best_bytes_per_s()
        return sum(best[host] for host in self.topology.members(rack)) / self.topology.uplink_bytes_per_s[rack]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values; an uplink that a single rack does not have is null."""
        values = {"schema": PROBE_SCHEMA_VERSION, **dataclasses.asdict(self)}
        uplinks = self.topology.uplink_bytes_per_s
        values["topology"]["uplink_bytes_per_s"] = [rate if math.isfinite(rate) else None for rate in uplinks]
        return values
