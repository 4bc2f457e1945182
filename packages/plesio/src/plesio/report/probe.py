"""Findings of a probe and the plan that follows, as tables in a terminal and as a page with heat maps."""

import math
import statistics
from collections.abc import Sequence
from itertools import permutations

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Axis, HeatMap, Table
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.cost.exchange_plan import Plan
from plesio.cost.probe import Probe
from plesio.cost.topology import Rows
from plesio.report.charts import plain_table
from plesio.report.document import Document, Item, Items, pictures, section
from plesio.report.page_frame import render_document

MOST_COLUMNS = 12
"""A terminal's matrix has no more; all pairs are in the page and in the JSON file."""
_WAYS = {
    "ring": "ring, planned order",
    "leaders": "two levels, by a leader of each rack",
    "sharded": "two levels, a part by each host",
}


def render_probe(probe: Probe, plan: Plan) -> RenderableType:
    hosts = probe.topology.matrix.hosts
    parts: list[RenderableType] = []
    if len(hosts) <= MOST_COLUMNS:
        parts.append(plain_table(_matrix(hosts, probe.topology.matrix.bytes_per_s)))
    parts += ["\n".join(["", *probe_sentences(probe, plan), ""])]
    return Group(*parts, plain_table(_times(plan)), Text(), plain_table(_ranks(plan), num_texts=2))


def render_probe_page(probe: Probe, plan: Plan) -> str:
    matrix = probe.topology.matrix
    shown = [("alone", "Bandwidth of each pair alone", matrix.bytes_per_s, 1e6, "MB/s")]
    shown += [("together", "While all hosts sent both ways at once", probe.contended_bytes_per_s, 1e6, "MB/s")]
    shown += [("latency", "Latency", matrix.latency_s, 1e-6, "µs")]
    charts = [
        _heat_map(plan, rows, slug=slug, title=title, unit_size=unit_size, unit=unit)
        for slug, title, rows, unit_size, unit in shown
    ]
    words = Items(items=[Item(text=sentence) for sentence in probe_sentences(probe, plan)])
    times, ranks = _times(plan), _ranks(plan)
    document = Document(
        title="Plesio: probe",
        heading=f"The network between {matrix.num_hosts} hosts",
        sections=[
            section("In words", words, slug="in-words"),
            section(times.title, times, slug="times"),
            pictures(charts, title="Pairs"),
            section(ranks.title, ranks, slug="ranks"),
        ],
    )
    return render_document(document)


def probe_sentences(probe: Probe, plan: Plan) -> list[str]:
    topology = probe.topology
    alone = f", {probe.num_alone} pairs alone" if probe.num_alone else ""
    sentences = [
        f"{topology.matrix.num_hosts} hosts, every pair three times{alone}, in {format_seconds(probe.wall_s)}."
    ]
    if topology.num_racks == 1:
        sentences.append(f"One rack: {_ways_between(probe, inside=True)} between any two hosts.")
    else:
        sizes = ", ".join(str(len(topology.members(rack))) for rack in range(topology.num_racks))
        sentences.append(
            f"{topology.num_racks} racks, of {sizes} hosts. Within: {_ways_between(probe, inside=True)}; "
            f"between, alone: {_ways_between(probe, inside=False)}."
        )
        sentences += [_uplink_sentence(probe, rack) for rack in range(topology.num_racks)]
    if plan.saving > 0:
        sentences.append(f"Plan: {_WAYS[plan.way]}; {100 * plan.saving:.0f} % less time than the ring as given.")
    else:
        sentences.append("Plan: a ring in the given order; no other is predicted to be faster by much.")
    if plan.planned_store_s < plan.even_store_s:
        sentences.append(
            f"Store: with the shares below a push and a pull take {format_seconds(plan.planned_store_s)}, "
            f"evenly divided {format_seconds(plan.even_store_s)}."
        )
    return sentences


def _uplink_sentence(probe: Probe, rack: int) -> str:
    rate, pairs = probe.topology.uplink_bytes_per_s[rack], probe.num_at_once[rack]
    return (
        f"Rack {rack} to the others, {pairs} pairs at once: {format_bandwidth(rate)} in all, "
        f"{format_bandwidth(rate / max(1, pairs))} each; its hosts have {probe.oversubscription(rack):.1f} times that."
    )


def _ways_between(probe: Probe, *, inside: bool) -> str:
    topology = probe.topology
    pairs = [
        (one, other)
        for one, other in permutations(range(topology.matrix.num_hosts), 2)
        if (topology.racks[one] == topology.racks[other]) == inside
    ]
    if not pairs:
        return "no pairs"
    rate = statistics.median(topology.matrix.bytes_per_s[one][other] for one, other in pairs)
    latency_s = statistics.median(topology.matrix.latency_s[one][other] for one, other in pairs)
    return f"{format_bandwidth(rate)} and {format_seconds(latency_s)}"


def _times(plan: Plan) -> Table:
    times = {"ring, given order": plan.given_ring_s, **{_WAYS[way]: time_s for way, time_s in plan.times_s.items()}}
    if plan.topology.num_racks == 1:
        del times[_WAYS["leaders"]]
    return Table(
        title="Predicted times",
        headers=(f"an all-reduce of {format_bytes(plan.num_bytes)}", "predicted", "of the ring in the given order"),
        rows=[
            (name, format_seconds(time_s), f"{100 * time_s / plan.given_ring_s:.0f} %")
            for name, time_s in times.items()
        ],
    )


def _ranks(plan: Plan) -> Table:
    topology = plan.topology
    rows = [
        (
            str(rank),
            topology.matrix.hosts[host],
            str(topology.racks[host]),
            "yes" if topology.num_racks > 1 and host in plan.leaders else "",
            f"{100 * plan.shard_shares[host]:.1f} %",
        )
        for rank, host in enumerate(plan.rank_order)
    ]
    headers = ("rank", "host", "rack", "leads", "share of the store")
    return Table(title="The plan, rank by rank", headers=headers, rows=rows)


def _matrix(hosts: Sequence[str], rows: Rows) -> Table:
    return Table(
        title="Bandwidth of each pair alone",
        headers=("MB/s alone, from / to", *map(str, range(len(hosts)))),
        rows=[
            [f"{one} {name}", *("" if one == other else f"{rows[one][other] / 1e6:.3g}" for other in range(len(hosts)))]
            for one, name in enumerate(hosts)
        ],
    )


def _heat_map(plan: Plan, rows: Rows, *, slug: str, title: str, unit_size: float, unit: str) -> HeatMap:
    order, hosts = plan.rank_order, plan.topology.matrix.hosts
    values = [[math.nan if one == other else rows[one][other] / unit_size for other in order] for one in order]
    texts = [["" if math.isnan(value) else f"{value:.3g}" for value in row] for row in values]
    return HeatMap(
        slug=slug,
        title=title,
        caption=f"{unit}, from the host of the row to that of the column, in the planned order of ranks.",
        x=Axis(title="to rank"),
        y=Axis(title=""),
        columns=[str(rank) for rank in range(len(order))],
        rows=[f"{rank} {hosts[host]}" for rank, host in enumerate(order)],
        values=values,
        scale=Axis(title=unit, log=True),  # ways differ by factors
        texts=texts if len(order) <= MOST_COLUMNS else (),
    )
