"""An all-reduce planned for the network's topology against one that is blind to it, on racks with a slow uplink.

Ways, of the same tensor:

- ring, dealt: ranks dealt to the racks in turn, so every step of the ring crosses the uplink;
- ring, random: ranks in random order (mean over seeds; measured: three seeds);
- ring, planned: in the order of `plesio.cost.exchange_plan.plan`;
- leaders: a sum in each rack (Gloo's reduce), an all-reduce among leaders, a broadcast in each rack;
- sharded: a reduce-scatter in each rack, each part all-reduced by the hosts that hold it, an all-gather in each rack.

*Modelled*: `plesio.cost.exchange_plan` on exact racks, 1 Gbit/s a host, by uplink, hosts and size. *Measured*: hosts
are network namespaces with shaped links (`plesio.testbed`); `plesio probe` finds the racks and the
plan, blindly; then the ways take turns, each round in another order, with Gloo. The time of one is that of the slowest
host from a common barrier on. All hosts share this machine's cores.

    python benchmarks/adaptive/topology.py [--rounds 7] [--quick] [--modelled-only]

Needs root for the measured part. Prints tables and writes benchmarks/results/topology.json.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from plesio.cost.exchange_plan import Plan, plan
from plesio.cost.ring_order import ring_s
from plesio.cost.topology import PairMatrix, Topology
from plesio.testbed.host import Host
from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.testbed import Testbed
from record import Spread, print_table, print_verdict, save

GOAL = 0.28
GIGABIT = 125e6
LATENCY_S = 250e-6
"""Latency of Gloo, from host to host, on the machine this was written on."""
RANDOM_ORDERS = 100
MEASURED_SEEDS = (0, 1, 2)
PORT = 29_541
Seconds = dict[str, float]


def dealt(sizes: Sequence[int]) -> list[int]:
    """Deal the hosts of racks (numbered rack by rack) in turn: first of each rack, second of each ..."""
    first = [sum(sizes[:rack]) for rack in range(len(sizes))]
    racks = [range(start, start + size) for start, size in zip(first, sizes, strict=True)]
    return [host for host in chain.from_iterable(zip_longest(*racks)) if host is not None]


def exact_topology(sizes: Sequence[int], *, uplink_bytes_per_s: float) -> Topology:
    """Return the findings of a probe without errors, hosts dealt to the racks."""
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    racks = [racks[host] for host in dealt(sizes)]
    count = len(racks)
    between = min(GIGABIT, uplink_bytes_per_s)
    matrix = PairMatrix(
        hosts=tuple(map(str, range(count))),
        latency_s=((LATENCY_S,) * count,) * count,
        bytes_per_s=tuple(tuple(GIGABIT if one == other else between for other in racks) for one in racks),
    )
    return Topology(matrix=matrix, racks=tuple(racks), uplink_bytes_per_s=(uplink_bytes_per_s,) * len(sizes))


def random_orders(count: int, *, seeds: Sequence[int]) -> list[list[int]]:
    return [random.Random(seed).sample(range(count), count) for seed in seeds]


def modelled(sizes: Sequence[int], *, uplink_bytes_per_s: float, num_bytes: float) -> tuple[Seconds, str]:
    """Seconds by way, and the way that the plan chooses."""
    topology = exact_topology(sizes, uplink_bytes_per_s=uplink_bytes_per_s)
    planned = plan(topology, num_bytes=num_bytes)
    orders = random_orders(sum(sizes), seeds=range(RANDOM_ORDERS))
    times = {
        "ring, dealt": planned.given_ring_s,
        "ring, random": statistics.fmean(ring_s(topology, order, num_bytes) for order in orders),
        "ring, planned": planned.planned_ring_s,
        "leaders": planned.leaders_s,
        **({} if planned.sharded_s is None else {"sharded": planned.sharded_s}),
    }
    return times, WAYS[planned.way]


def measured(sizes: Sequence[int], *, uplink_bytes_per_s: float, num_bytes: Sequence[int], rounds: int) -> Any:
    """Return the output of the hosts' rank 0: the probe's plan and, by size, the seconds of each way in each round."""
    with (
        Testbed.of_racks(sizes, nic_bytes_per_s=GIGABIT, uplink_bytes_per_s=uplink_bytes_per_s) as testbed,
        tempfile.TemporaryDirectory(prefix="plesio-") as folder,
    ):
        answer = Path(folder) / "answer.json"
        settings = {"num_bytes": list(num_bytes), "rounds": rounds, "answer": str(answer)}
        _run_on([testbed.hosts[host] for host in dealt(sizes)], json.dumps(settings))
        return json.loads(answer.read_text(encoding="utf-8"))


def _run_on(hosts: Sequence[Host], settings: str) -> None:
    processes = []
    try:
        for rank, host in enumerate(hosts):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(PORT),
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            }
            command = host.command([sys.executable, __file__, "--as-host", settings])
            processes.append(subprocess.Popen(command, env=environment))
        for process in processes:
            if process.wait(timeout=600):
                raise SystemExit(f"a host ended with status {process.returncode}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def run_as_host(settings: dict[str, Any]) -> None:
    """One host's part: probe, plan, then all ways in turn."""
    import torch
    from torch.distributed import PrefixStore, TCPStore

    from plesio.bench.probe import probe_here
    from plesio.runtime.worker.environment import WorkerPlace

    place = WorkerPlace.from_environment()
    assert place is not None
    probe = probe_here(place)
    os.environ["GLOO_SOCKET_IFNAME"] = place.own_interface() or "lo"
    port = place.port + 1
    store = TCPStore(place.address, port, is_master=place.rank == 0, wait_for_workers=False)
    plans = {size: plan(probe.topology, num_bytes=size) for size in settings["num_bytes"]}
    groups = _Groups(PrefixStore("groups", store), place.rank)
    measured: dict[int, dict[str, list[float]]] = {}
    for size, planned in plans.items():
        ways = _ways(groups, planned)
        tensor = torch.ones(size // 4)
        measured[size] = {name: [] for name in ways}
        for number in range(-1, settings["rounds"]):
            names = list(ways)
            names = names[number % len(names) :] + names[: number % len(names)]
            for name in names:
                tensor.fill_(1.0)
                took_s = groups.timed(partial(ways[name], tensor))
                assert tensor[0] == tensor[-1] == place.num_workers, f"{name} does not add up"
                if number >= 0:
                    measured[size][name].append(took_s)
    if place.rank == 0:
        first = next(iter(plans.values()))
        answer = {
            "racks": probe.topology.racks,
            "uplinks_bytes_per_s": probe.topology.uplink_bytes_per_s,
            "probe_s": probe.wall_s,
            "rank_order": first.rank_order,
            "predicted_s": {
                size: {"ring, dealt": one.given_ring_s, "ring, planned": one.planned_ring_s, "way": one.way}
                | {"leaders": one.leaders_s, "sharded": one.sharded_s}
                for size, one in plans.items()
            },
            "measured_s": measured,
        }
        Path(settings["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    groups.meet()


class _Groups:
    """Gloo groups whose ranks are in any order; torch's own `new_group` sorts them."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank
        self._groups: dict[str, Any] = {}
        self._world: Any = None

    def of(self, name: str, members: Sequence[int]) -> Any:
        """Return the group of these hosts in this order; None if this one is not in it."""
        from torch.distributed import PrefixStore, ProcessGroupGloo

        key = f"{name}/{'-'.join(map(str, members))}"
        if self._rank in members and key not in self._groups:
            place = list(members).index(self._rank)
            self._groups[key] = ProcessGroupGloo(
                PrefixStore(key, self._store), place, len(members), timedelta(seconds=120)
            )
        return self._groups.get(key)

    def meet(self) -> None:
        import torch

        if self._world is None:
            count = int(os.environ["WORLD_SIZE"])
            self._world = self.of("world", range(count))
        self._world.allreduce([torch.zeros(1)]).wait()

    def timed(self, act: Callable[[], None]) -> float:
        """Seconds from a barrier until the last host is done."""
        import time

        import torch
        from torch.distributed import AllreduceOptions, ReduceOp

        self.meet()
        self.meet()
        begun_s = time.perf_counter()
        act()
        took = torch.tensor([time.perf_counter() - begun_s], dtype=torch.float64)
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.MAX
        self._world.allreduce([took], options).wait()
        return float(took)


def _ways(groups: _Groups, planned: Plan) -> dict[str, Callable[[Any], None]]:
    from torch.distributed import BroadcastOptions, ReduceOptions

    topology = planned.topology
    count = topology.matrix.num_hosts
    rank = groups._rank
    orders = {"ring, dealt": range(count), "ring, planned": planned.rank_order}
    for seed, order in zip(MEASURED_SEEDS, random_orders(count, seeds=MEASURED_SEEDS), strict=True):
        orders[f"ring, random {seed}"] = order
    ways: dict[str, Callable[[Any], None]] = {}
    for name, order in orders.items():
        group = groups.of("ring", order)
        ways[name] = lambda tensor, group=group: group.allreduce([tensor]).wait()
    if topology.num_racks == 1:
        return ways

    own = [host for host in planned.rank_order if topology.racks[host] == topology.racks[rank]]
    leader = next(host for host in own if host in planned.leaders)
    own = [leader, *(host for host in own if host != leader)]
    inside = groups.of("rack", own)
    across = groups.of("leaders", planned.leaders)
    reduce, broadcast = ReduceOptions(), BroadcastOptions()
    reduce.rootRank = broadcast.rootRank = 0

    def by_leaders(tensor: Any) -> None:
        inside.reduce([tensor], reduce).wait()
        if across is not None:
            across.allreduce([tensor]).wait()
        inside.broadcast([tensor], broadcast).wait()

    ways["leaders"] = by_leaders
    if planned.sharded_s is None:
        return ways
    racks = [[h for h in planned.rank_order if topology.racks[h] == rack] for rack in range(topology.num_racks)]
    mine = racks[topology.racks[rank]]
    place = mine.index(rank)
    column = groups.of("column", [rack[place] for rack in racks])
    row = groups.of("row", mine)

    def sharded(tensor: Any) -> None:
        import torch

        parts = list(tensor.tensor_split(len(mine)))
        peers = [peer for peer in range(len(mine)) if peer != place]
        received = {peer: torch.empty_like(parts[place]) for peer in peers}
        works = [row.recv([received[peer]], peer, 0) for peer in peers]
        works += [row.send([parts[peer]], peer, 0) for peer in peers]
        for work in works:
            work.wait()
        for part in received.values():
            parts[place] += part
        column.allreduce([parts[place]]).wait()
        works = [row.recv([parts[peer]], peer, 1) for peer in peers]
        works += [row.send([parts[place]], peer, 1) for peer in peers]
        for work in works:
            work.wait()

    ways["sharded"] = sharded
    return ways


def racks_text(sizes: Sequence[int]) -> str:
    return " + ".join(map(str, sizes))


def saving(times: Seconds, *, way: str, blind: str) -> float:
    return 1 - times[way] / times[blind]


def milliseconds(times: Seconds, name: str) -> str:
    return f"{1e3 * times[name]:.0f} ms" if name in times else "–"


NAMES = ("ring, dealt", "ring, random", "ring, planned", "leaders", "sharded")
COLUMNS = ["racks", "Mbit/s up", "size", *NAMES, "plan", "saves of dealt", "of random"]
WAYS = {"ring": "ring, planned", "leaders": "leaders", "sharded": "sharded"}


def row_of(sizes: Sequence[int], uplink: float, num_bytes: int, times: Seconds, *, way: str) -> list[str]:
    cells = [milliseconds(times, name) for name in NAMES]
    savings = [f"{saving(times, way=way, blind=blind):.0%}" for blind in NAMES[:2]]
    return [racks_text(sizes), f"{uplink * 8e-6:.0f}", f"{num_bytes / 1e6:g} MB", *cells, way, *savings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="2 rounds of one setting: does it work?")
    parser.add_argument("--modelled-only", action="store_true")
    parser.add_argument("--as-host", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_host is not None:
        run_as_host(json.loads(arguments.as_host))
        return
    rounds = 2 if arguments.quick else arguments.rounds

    rows, results = [], []
    for sizes in ((2, 2), (4, 4), (8, 8), (4, 2)):
        for ratio in (1, 2, 5, 10):
            for num_bytes in (1_000_000, 25_000_000) if ratio == 5 else (25_000_000,):
                times, way = modelled(sizes, uplink_bytes_per_s=GIGABIT / ratio, num_bytes=num_bytes)
                rows.append(row_of(sizes, GIGABIT / ratio, num_bytes, times, way=way))
                setting = {"sizes": sizes, "uplink_bytes_per_s": GIGABIT / ratio, "num_bytes": num_bytes}
                results.append({**setting, "plan": way, "predicted_s": times})
    print_table("modelled, 1 Gbit/s a host", columns=COLUMNS, rows=rows)
    if arguments.modelled_only:
        return

    reason = why_no_namespaces()
    if reason is not None:
        raise SystemExit(f"cannot measure: {reason}")
    settings = [((2, 2), 25e6), ((3, 3), 25e6), ((4, 4), 25e6), ((4, 4), 62.5e6), ((4, 2), 25e6), ((4, 4), GIGABIT)]
    rows, answers, savings = [], [], []
    for sizes, uplink in settings[:1] if arguments.quick else settings:
        answer = measured(sizes, uplink_bytes_per_s=uplink, num_bytes=(1_000_000, 8_000_000), rounds=rounds)
        answers.append({"sizes": sizes, "uplink_bytes_per_s": uplink, **answer})
        print(f"{racks_text(sizes)}: racks found {answer['racks']}, uplinks {answer['uplinks_bytes_per_s']}")
        for num_bytes, by_way in answer["measured_s"].items():
            spreads = {name: Spread(values) for name, values in by_way.items()}
            times = {name: spread["median"] for name, spread in spreads.items()}
            seeds = [f"ring, random {seed}" for seed in MEASURED_SEEDS]
            times["ring, random"] = statistics.fmean(times[name] for name in seeds)
            answers[-1].setdefault("spreads", {})[num_bytes] = spreads
            way = WAYS[answer["predicted_s"][num_bytes]["way"]]
            rows.append(row_of(sizes, uplink, int(num_bytes), times, way=way))
            if uplink < GIGABIT:
                savings.append(saving(times, way=way, blind="ring, dealt"))
    print_table(f"measured, medians of {rounds} rounds", columns=COLUMNS, rows=rows)
    met = min(savings) >= GOAL
    print_verdict(f"at least {GOAL:.0%} less time than dealt ranks, wherever the uplink is slow", met=met)
    save("topology", settings={"rounds": rounds}, results={"modelled": results, "measured": answers}, met=met)


if __name__ == "__main__":
    main()
