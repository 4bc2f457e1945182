"""An all-reduce on a cluster: every algorithm's rounds laid over the cluster's links, and which is the fastest there.

The formulas of `plesio.cost.all_reduce` need one latency and one bandwidth. A cluster has several, and ranks that share
them. So each algorithm is written as *rounds*, sets of equal messages sent at the same time. A round takes as long as
its slowest message: the latencies on its path (twice with Gloo, `Cluster.message_latencies`), and its bytes over the
least bandwidth it gets on it, where the messages of a round that meet on a shared link share it equally. On a cluster
of equal links that are not shared it is the formula, exactly.

A round ends for all ranks at once: one slow link in a ring is waited for in every round. Real ranks overlap a little,
so this is an upper bound. The double tree is missing, as it is no sequence of rounds of equal messages.

All take the cluster of the workers, the ``ranks`` that take part (arranged host by host, as all libraries do), and the
size of the tensor. They raise `ConfigError` for no ranks, one twice, one that the cluster has no slot for, and a
negative size. Workers ``beside`` these, group by group, do the same among themselves at the same time: links on which
they meet are shared.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from types import MappingProxyType

from plesio.core.errors import ConfigError
from plesio.cost.all_reduce import busiest_rank_bytes
from plesio.cost.cluster import Cluster
from plesio.cost.hockney import check_message, levels
from plesio.cost.link import Link
from plesio.cost.selection import Choice, fastest


@dataclass(frozen=True, slots=True)
class _Round:
    """Equal messages at the same time.

    Attributes:
        pairs: Sender and receiver of each, as positions among the ranks that take part.
    """

    pairs: Sequence[tuple[int, int]]
    num_bytes: float
    times: int = 1


def select_all_reduce_on(cluster: Cluster, ranks: Sequence[int], num_bytes: float) -> Choice:
    """Return the fastest of ring, halving-doubling, tree and hierarchical all-reduce of these workers, and its seconds.

    >>> from plesio.cost.cluster import parse_cluster
    >>> choice = select_all_reduce_on(parse_cluster("16x8h100"), range(128), 700e6)
    >>> choice.algorithm, f"{choice.duration_s * 1e3:.1f} ms"
    ('ring', '6.0 ms')
    """
    return fastest(all_reduce_times_on(cluster, ranks, num_bytes))


def all_reduce_on(
    cluster: Cluster, ranks: Sequence[int], num_bytes: float, *, beside: Iterable[Sequence[int]] = ()
) -> float:
    """Return seconds of a ring all-reduce of these workers: what Gloo does, and NCCL for tensors that are not small."""
    return _rounds_beside_s(_ring, cluster=cluster, ranks=ranks, num_bytes=num_bytes, beside=beside)


def bucket_all_reduce_on(
    cluster: Cluster, ranks: Sequence[int], num_bytes: float, *, beside: Iterable[Sequence[int]] = ()
) -> float:
    """Return the seconds of an all-reduce of one of DDP's buckets: a ring by Gloo, a double tree by NCCL between hosts.

    A double tree sends more than a ring, ``min(2, n/2)`` to ``2(n-1)/n`` bytes a byte (Sanders, Speck & Träff 2009). On
    four hosts, DDP's steps took what trees take, and local SGD's exchanges in one piece what rings take
    (`plesio lab validate published`).

    >>> from plesio.cost.cluster import Link
    >>> nic = Link(latency_s=0.0, bytes_per_s=1e6)
    >>> four = Cluster(name="four", hosts=4, workers_per_host=1, cores_per_host=1, nic=nic, collectives="nccl")
    >>> all_reduce_on(four, range(4), 1e6), bucket_all_reduce_on(four, range(4), 1e6)
    (1.5, 2.0)
    """
    ranks = list(ranks)
    if cluster.library == "nccl" and len({cluster.host_of(rank) for rank in ranks}) > 1:
        sent = [busiest_rank_bytes(name, 1.0, num_ranks=len(ranks)) for name in ("double tree", "ring")]
        num_bytes *= sent[0] / sent[1]
    return all_reduce_on(cluster, ranks, num_bytes, beside=beside)


def broadcast_on(
    cluster: Cluster, ranks: Sequence[int], num_bytes: float, *, beside: Iterable[Sequence[int]] = ()
) -> float:
    """Return the seconds of a broadcast down a binomial tree over these workers."""
    return _rounds_beside_s(_tree_down, cluster=cluster, ranks=ranks, num_bytes=num_bytes, beside=beside)


def all_reduce_times_on(cluster: Cluster, ranks: Sequence[int], num_bytes: float) -> dict[str, float]:
    """Return the seconds of an all-reduce on the cluster, by algorithm.

    ``hierarchical`` is there if every host has as many of the ranks, more than one, and there are several hosts.
    """
    hosts = _hosts(cluster, ranks, num_bytes)
    per_host = [len(list(group)) for _, group in groupby(hosts)]
    rounds: Mapping[str, Iterator[_Round]] = {
        "ring": _ring(len(hosts), num_bytes),
        "halving-doubling": _halving_doubling(len(hosts), num_bytes),
        "tree": _tree(len(hosts), num_bytes),
    }
    if len(per_host) > 1 and per_host[0] > 1 and len(set(per_host)) == 1:
        rounds = {**rounds, "hierarchical": _hierarchical(len(per_host), per_host[0], num_bytes)}
    return {
        name: sum((one.times * _round_s(one, cluster=cluster, hosts=hosts) for one in steps), 0.0)
        for name, steps in rounds.items()
    }


def _hosts(cluster: Cluster, ranks: Sequence[int], num_bytes: float) -> list[int]:
    check_message(num_bytes)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ConfigError(f"a collective of the ranks {list(ranks)}; write one or more, each once")
    return [cluster.host_of(rank) for rank in sorted(ranks)]


def _rounds_beside_s(
    rounds: Callable[[int, float], Iterator[_Round]],
    *,
    cluster: Cluster,
    ranks: Sequence[int],
    num_bytes: float,
    beside: Iterable[Sequence[int]],
) -> float:
    """Return the seconds of these workers' rounds while others do theirs in the same steps."""
    all_hosts = [_hosts(cluster, group, num_bytes) for group in (ranks, *beside)]
    duration_s = 0.0
    for own, *others in zip_longest(*(rounds(len(hosts), num_bytes) for hosts in all_hosts)):
        if own is None:
            break
        meets = _users(
            ((round_, hosts) for round_, hosts in zip(others, all_hosts[1:], strict=True) if round_), cluster
        )
        duration_s += own.times * _round_s(own, cluster=cluster, hosts=all_hosts[0], meets=meets)
    return duration_s


def _round_s(
    round_: _Round, *, cluster: Cluster, hosts: Sequence[int], meets: Mapping[str, int] = MappingProxyType({})
) -> float:
    """Return the seconds of a round that ``meets`` so many messages of others on the links of these names."""
    ends = {(hosts[source], hosts[target]) for source, target in round_.pairs}
    users = _users([(round_, hosts)], cluster)
    users.update(meets)
    return max(
        cluster.message_latencies * sum(link.latency_s for link in path)
        + round_.num_bytes * max(_s_per_byte(link, max(users[link.name], 1)) for link in path)
        for path in (cluster.path(*pair) for pair in ends)
    )


def _s_per_byte(link: Link, num_messages: int) -> float:
    """Return the seconds that a byte of one of so many messages takes on a link that they share."""
    return num_messages / link.carried_bytes_per_s(num_messages)


def _users(rounds: Iterable[tuple[_Round, Sequence[int]]], cluster: Cluster) -> Counter[str]:
    """Return the messages on each shared link while these rounds are under way."""
    users: Counter[str] = Counter()
    for round_, hosts in rounds:
        for ends, number in Counter((hosts[source], hosts[target]) for source, target in round_.pairs).items():
            users.update({link.name: number for link in cluster.path(*ends) if link.shared})
    return users


def _ring(num_ranks: int, num_bytes: float) -> Iterator[_Round]:
    if num_ranks > 1:
        pairs = [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
        yield _Round(pairs, num_bytes / num_ranks, times=2 * (num_ranks - 1))


def _tree(num_ranks: int, num_bytes: float) -> Iterator[_Round]:
    for level in range(levels(num_ranks)):
        distance = 1 << level
        up = [(rank + distance, rank) for rank in range(0, num_ranks - distance, 2 * distance)]
        yield _Round(up, num_bytes)
        yield _Round([(parent, child) for child, parent in up], num_bytes)


def _tree_down(num_ranks: int, num_bytes: float) -> Iterator[_Round]:
    return islice(_tree(num_ranks, num_bytes), 1, None, 2)  # every other round goes up


def _halving_doubling(num_ranks: int, num_bytes: float) -> Iterator[_Round]:
    """Let neighbours exchange halves, ranks two apart quarters ...: the largest messages go the shortest way."""
    depth = num_ranks.bit_length() - 1
    beyond = num_ranks - (1 << depth)
    if beyond:
        fold = [(2 * pair + 1, 2 * pair) for pair in range(beyond)]
        yield _Round(fold, num_bytes)
        yield _Round([(target, source) for source, target in fold], num_bytes)
    ranks = [*range(0, 2 * beyond, 2), *range(2 * beyond, num_ranks)]
    for level in range(depth):
        pairs = [(ranks[index], ranks[index ^ (1 << level)]) for index in range(1 << depth)]
        yield _Round(pairs, num_bytes / (1 << level + 1), times=2)


def _hierarchical(num_hosts: int, ranks_per_host: int, num_bytes: float) -> Iterator[_Round]:
    part = num_bytes / ranks_per_host
    places = [(host, local) for host in range(num_hosts) for local in range(ranks_per_host)]

    def position(host: int, local: int) -> int:
        return host % num_hosts * ranks_per_host + local % ranks_per_host

    inside = [(position(host, local), position(host, local + 1)) for host, local in places]
    between = [(position(host, local), position(host + 1, local)) for host, local in places]
    yield _Round(inside, part, times=2 * (ranks_per_host - 1))
    yield _Round(between, part / num_hosts, times=2 * (num_hosts - 1))
