"""`plesio list clusters`: the clusters that have a name, one line each."""

from plesio.cli.listing import tell
from plesio.cli.options import Json, Overwrite
from plesio.core.units import counted, format_bandwidth

EXAMPLES = """\b
Examples:
  plesio list clusters
  plesio simulate digits --workers 16 --cluster 16x1gbe
\b
docs/cost.md shows how to describe one of your own."""


def clusters(json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List the clusters that --cluster can name.

    A cluster is its hosts, their workers, and the links between them.
    """
    from plesio.cost.cluster import NAMED_CLUSTERS

    lines = {}
    for name, one in NAMED_CLUSTERS.items():
        racks = f" in {one.racks} racks" if one.racks > 1 else ""
        device = f" ({one.device})" if one.device else ""
        each = " each" if one.hosts > 1 else ""
        nic = f", {format_bandwidth(one.nic.bytes_per_s)} between hosts" if one.hosts > 1 else ""
        workers = f"{counted(one.workers_per_host, 'worker')}{each}{device}"
        lines[name] = f"{counted(one.hosts, 'host')}{racks}, {workers}{nic}"
    tell({"clusters": lines}, json_file=json_file, overwrite=overwrite)


def num_clusters() -> int:
    from plesio.cost.cluster import NAMED_CLUSTERS

    return len(NAMED_CLUSTERS)
