"""Fragments of the parameters that are exchanged in turn, and how far a worker is with each on the store."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plesio.core.errors import ConfigError
from plesio.policies import Policy
from plesio.policies.compression import NO_COMPRESSION
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.worker.compression.pushes import CompressedPushes
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.store_client import Present, StoreClient


@dataclass(slots=True, kw_only=True)
class StoreFragment:
    """Tensors that are pushed and pulled at one time.

    Attributes:
        number: Its place in the turn; buffers go with the first.
        names: Names of the parameters; None: all.
        present: Their slices, by server; None: all.
        compressed: Encodes what is pushed; None pushes everything.
        base_version: The version from which the steps since the last push began; None before the first of them.
        num_steps: Finite steps since the last push.
    """

    number: int
    names: Collection[str] | None
    present: Present | None
    compressed: CompressedPushes | None
    version: int = 0
    base_version: int | None = None
    num_steps: int = 0

    @property
    def kept_back(self) -> bool:
        return self.compressed is not None and self.compressed.kept_back

    @property
    def unsent(self) -> bool:
        return self.num_steps > 0 or self.kept_back

    def step(self, *, finite: bool) -> None:
        if self.base_version is None:
            self.base_version = self.version
        self.num_steps += finite

    def pushed(self) -> int:
        """Begin anew; returns the version from which the steps that are pushed began."""
        base_version, self.base_version, self.num_steps = self.base_version, None, 0
        return self.version if base_version is None else base_version


def store_fragments(
    replica: Replica, *, policy: Policy, layout: SliceLayout, seed: int, client: StoreClient
) -> list[StoreFragment]:
    """Divide the parameters as on the collective: the same on all workers.

    It raises ConfigError if there are fewer tensors than fragments. Of an island's rank, the slices that it sends are
    compressed.
    """
    parameters = [(name, p.numel()) for name, p, kind, _ in replica.tensors.exchanged() if kind == "parameter"]
    check_fragments(policy, num_tensors=len(parameters))
    parts: list[Collection[str] | None] = [None]
    if policy.fragments > 1:
        places = fragments_of([size for _, size in parameters], num_fragments=policy.fragments)
        parts = [{parameters[place][0] for place in part} for part in places]
    sent = layout if client.divided is None else client.divided.sent
    # ranks round independently
    rank = client.rank if replica.island is None else client.rank + (replica.island.rank << 32)
    fragments = []
    for number, names in enumerate(parts):
        present, compressed = None, None
        if names is not None:
            present = [
                [index for index, piece in enumerate(slices) if piece.kind == "parameter" and piece.name in names]
                for slices in layout.servers
            ]
        if policy.compression != NO_COMPRESSION:
            compressed = CompressedPushes(policy.compression, layout=sent, seed=seed, rank=rank, of=names)
        fragments.append(StoreFragment(number=number, names=names, present=present, compressed=compressed))
    return fragments


def check_fragments(policy: Policy, *, num_tensors: int) -> None:
    """Raise `ConfigError` if a model with so many trained tensors has too few for the policy's fragments."""
    if policy.fragments > num_tensors:
        raise ConfigError(
            f"{policy.spec}: {policy.fragments} fragments of whole tensors are asked for, and the model has "
            f"{num_tensors} that are trained; write fewer fragments"
        )


def fragments_of(sizes: Sequence[int], *, num_fragments: int) -> list[list[int]]:
    """Divide tensors of these sizes into fragments of about the same size.

    The largest goes first, each to the fragment that is smallest so far: none then exceeds the best possible by more
    than a third (Graham 1969, "Bounds on multiprocessing timing anomalies"). Ties go to the first.

    Returns:
        The places of each fragment's tensors, in ascending order.

    >>> fragments_of([2, 7, 3, 5], num_fragments=2)
    [[0, 1], [2, 3]]
    """
    assert num_fragments <= len(sizes), "each fragment has a tensor"
    fragments: list[list[int]] = [[] for _ in range(num_fragments)]
    totals = [0] * num_fragments
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        smallest = min(range(num_fragments), key=lambda number: (totals[number], len(fragments[number]), number))
        fragments[smallest].append(place)
        totals[smallest] += sizes[place]
    return [sorted(fragment) for fragment in fragments]
