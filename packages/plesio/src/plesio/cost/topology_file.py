"""A measured topology as a cluster file: what `plesio.cost.cluster.Cluster` reads, with the measurement in it.

A cluster has hosts alike in racks alike, so ``[nic]`` and ``[uplink]`` are medians. The measurements pair by pair are
in the table ``[probe]``, which `Cluster` passes over and `read_topology` reads; hosts are in the planned order of ranks
there, as ranks fill a cluster's hosts one after the other.
"""

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError
from plesio.core.files import read_given
from plesio.cost.exchange_plan import Plan
from plesio.cost.topology import PairMatrix, Topology


def reordered(topology: Topology, order: Sequence[int]) -> Topology:
    """Return the same hosts in another order; racks are counted anew in the order in which they appear."""
    matrix = topology.matrix
    numbers: dict[int, int] = {}
    racks = tuple(numbers.setdefault(topology.racks[host], len(numbers)) for host in order)

    def rows(values: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(values[one][other] for other in order) for one in order)

    return Topology(
        matrix=PairMatrix(
            hosts=tuple(matrix.hosts[host] for host in order),
            latency_s=rows(matrix.latency_s),
            bytes_per_s=rows(matrix.bytes_per_s),
        ),
        racks=racks,
        uplink_bytes_per_s=tuple(topology.uplink_bytes_per_s[rack] for rack in numbers),
    )


def alike(topology: Topology) -> bool:
    """Return True if a cluster file can describe these racks: equally many hosts in each, fewer in the last."""
    sizes = [len(topology.members(rack)) for rack in range(topology.num_racks)]
    full = -(-sum(sizes) // len(sizes))
    return all(size == full for size in sizes[:-1])


def cluster_text(plan: Plan, *, name: str = "probed") -> str:
    """Write the TOML of the cluster, with its hosts in the planned order.

    >>> from plesio.cost.cluster import Cluster
    >>> from plesio.cost.exchange_plan import plan
    >>> from plesio.cost.topology import PairMatrix
    >>> two = PairMatrix(hosts=("a", "b"), latency_s=((0, 1e-4), (1e-4, 0)), bytes_per_s=((0, 1e9), (1e9, 0)))
    >>> Cluster.from_toml(cluster_text(plan(two, num_bytes=1e6)), name="two").nic.bytes_per_s
    1000000000.0
    """
    topology = reordered(plan.topology, plan.rank_order)
    inside_s, between_s = _latencies_s(topology)
    lines = [
        "# Measured by plesio lab probe. Hosts are in the planned order: ranks fill them one after the other.",
        f"name = {_quoted(name)}",
        f"hosts = {topology.matrix.num_hosts}",
        f"racks = {topology.num_racks}",
        "workers_per_host = 1",
        'collectives = "gloo"  # what measured it',
        "",
        "[nic]",
        f'latency = "{inside_s * 1e6:.4g} us"',
        f'bandwidth = "{statistics.median(topology.matrix.best_bytes_per_s()) / 1e6:.4g} MB/s"',
    ]
    if topology.num_racks > 1:
        lines += [
            "",
            "[uplink]",
            f'latency = "{max(0.0, between_s - inside_s) * 1e6:.4g} us"',
            f'bandwidth = "{statistics.median(topology.uplink_bytes_per_s) / 1e6:.4g} MB/s"',
        ]
    if not alike(topology):
        sizes = " and ".join(str(len(topology.members(rack))) for rack in range(topology.num_racks))
        lines.insert(1, f"# A cluster's racks are alike; these have {sizes} hosts, and [probe] says which.")
    return "\n".join([*lines, "", *_probe_table(topology)]) + "\n"


def _probe_table(topology: Topology) -> list[str]:
    matrix = topology.matrix
    uplinks = [rate for rate in topology.uplink_bytes_per_s if math.isfinite(rate)]
    return [
        "[probe]  # pair by pair: from the host of the row to the host of the column",
        f"hosts = [{', '.join(map(_quoted, matrix.hosts))}]",
        f"racks = {list(topology.racks)}",
        f"uplink_bytes_per_s = {_numbers(uplinks)}",
        *_rows("latency_s", matrix.latency_s),
        *_rows("bytes_per_s", matrix.bytes_per_s),
    ]


def read_topology(path: Path) -> Topology:
    """Read the topology in a cluster file that `plesio lab probe` wrote; raise `ConfigError` where there is none."""
    text = read_given(path, "cluster file", instead=f"plesio lab probe --out {path} writes one")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error}") from None
    if "probe" not in document:
        raise ConfigError(
            f"{path} has no [probe]: it was not measured; plesio lab probe --out FILE writes one that was"
        )
    try:
        return _topology(document["probe"])
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"{path}: [probe]: {what}; plesio lab probe --out FILE writes it anew") from None


def _topology(table: Mapping[str, Any]) -> Topology:
    def rows(key: str) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(value) for value in row) for row in table[key])

    racks = tuple(int(rack) for rack in table["racks"])
    uplinks = tuple(float(rate) for rate in table["uplink_bytes_per_s"])
    return Topology(
        matrix=PairMatrix(
            hosts=tuple(map(str, table["hosts"])), latency_s=rows("latency_s"), bytes_per_s=rows("bytes_per_s")
        ),
        racks=racks,
        uplink_bytes_per_s=uplinks or (math.inf,),
    )


def _latencies_s(topology: Topology) -> tuple[float, float]:
    """Return the medians of the latencies within racks and between them; either is the other's where there is none."""
    inside: list[float] = []
    between: list[float] = []
    for one, other in permutations(range(topology.matrix.num_hosts), 2):
        same = topology.racks[one] == topology.racks[other]
        (inside if same else between).append(topology.matrix.latency_s[one][other])
    return statistics.median(inside or between), statistics.median(between or inside)


def _rows(key: str, rows: Sequence[Sequence[float]]) -> list[str]:
    return [f"{key} = [", *(f"  {_numbers(row)}," for row in rows), "]"]


def _numbers(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{float(value):.6g}' for value in values)}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
