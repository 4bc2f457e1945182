"""Replicas' mixers together: by themselves on links in memory, in any order that the schedule allows."""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plesio.core.errors import ConfigError, WorkerLostError
from plesio.core.mixing import GRAPHS, Mixing
from plesio.policies.compression import parse_compression
from plesio.policies.grid import BeginMixing, EndMixing, GridSetting, StageMachine, Update
from plesio.runtime.grid.formation import Formation, GridPlace, GroupChange, News
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.worker.exchange.links import Inbox, PeerGoneError

SIZE = 5
NUM_UPDATES = 9


@dataclass
class Post:
    """Messages that are under way, and workers that are gone."""

    under_way: dict[tuple[int, int, int], deque[torch.Tensor]] = field(default_factory=lambda: defaultdict(deque))
    gone: set[int] = field(default_factory=set)


@dataclass
class MemoryLinks:
    """Links of a worker whose messages are there at once."""

    post: Post
    rank: int

    def send(self, message: torch.Tensor, *, to: int, tag: int, most: int = 2) -> None:
        if to in self.post.gone:
            raise PeerGoneError(to)
        self.post.under_way[self.rank, to, tag].append(message.clone())

    def expect(self, num_bytes: int, *, source: int, tag: int) -> "MemoryInbox":
        return MemoryInbox(self.post, (source, self.rank, tag), num_bytes)

    def flush(self, to: int) -> None:
        pass


@dataclass
class MemoryInbox:
    post: Post
    key: tuple[int, int, int]
    num_bytes: int

    def wait(self) -> torch.Tensor:
        messages = self.post.under_way[self.key]
        if not messages:
            assert self.key[0] in self.post.gone, "the schedule ends a mixing that a neighbour has not begun"
            raise PeerGoneError(self.key[0])
        message = messages.popleft()
        assert len(message) == self.num_bytes
        return message


@dataclass
class Replica:
    """One group's stage: weights that move by themselves, and its mixer."""

    group: int
    weights: list[torch.Tensor]
    mixer: Mixer
    machine: StageMachine
    lost: list[int]
    num_begun: int = 0

    @property
    def flat(self) -> np.ndarray:
        return torch.cat([tensor.reshape(-1) for tensor in self.weights]).numpy().copy()

    def moves(self, version: int) -> np.ndarray:
        return np.random.default_rng([self.group, version]).normal(size=SIZE)

    def actions(self, *, num_updates: int = NUM_UPDATES) -> Iterator[int]:
        """Do what the schedule says, an action at a time; yields how many mixings neighbours must have begun."""
        given = itertools.chain.from_iterable(self.machine.give() for _ in range(num_updates))
        num_ended = 0
        for action in itertools.chain(given, self._end()):
            match action:
                case Update(version=version):
                    yield 0
                    self.move(self.moves(version))
                case BeginMixing(version=version):
                    yield 0
                    self.mixer.begin(version)
                    self.num_begun += 1
                case EndMixing(version=version):
                    num_ended += 1
                    yield num_ended
                    self.mixer.end(version)

    def _end(self) -> Iterator[object]:
        yield from self.machine.end()

    def move(self, change: np.ndarray) -> None:
        parts = torch.from_numpy(change).split([tensor.numel() for tensor in self.weights])
        for tensor, part in zip(self.weights, parts, strict=True):
            tensor.add_(part.view_as(tensor).to(tensor.dtype))


def replicas_of(setting: GridSetting, post: Post) -> list[Replica]:
    replicas = []
    for group in range(setting.groups):
        weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)]
        lost: list[int] = []
        mixer = Mixer(
            weights,
            formation=Formation.first(setting),
            links=MemoryLinks(post, group),
            place=GridPlace(group, 0),
            seed=0,
            news=News(),
            on_lost=lost.append,
        )
        replicas.append(Replica(group, weights, mixer, StageMachine(setting, stage=0), lost))
    return replicas


def interleave(replicas: Sequence[Replica], choose: Callable[[int], int], **told: int) -> None:
    """Do all actions of all, one at a time, of somebody who need not wait; ``choose(n)`` says who of n."""
    running = {replica.group: replica.actions(**told) for replica in replicas}
    needs = {group: next(actions, None) for group, actions in running.items()}
    begun = {replica.group: replica for replica in replicas}
    while any(need is not None for need in needs.values()):
        able = [
            group
            for group, need in needs.items()
            if need is not None
            and all(begun[other].num_begun >= need for other in begun[group].mixer.neighbours if other in begun)
        ]
        assert able, "nobody can go on"
        group = able[choose(len(able))]
        needs[group] = next(running[group], None)


def by_matrices(setting: GridSetting, moves: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """The same with all replicas in one matrix."""
    change = np.array(setting.mixing.matrix) - np.eye(setting.groups)
    x, begun = np.zeros((setting.groups, SIZE)), {}
    for version in range(1, NUM_UPDATES + 1):
        x = x + np.stack([moves(group, version) for group in range(setting.groups)])
        if version % setting.every == 0:
            begun[version] = x
        if version - setting.bound in begun:
            x = x + change @ begun.pop(version - setting.bound)
    for then in begun.values():
        x = x + change @ then
    return x


@st.composite
def settings_of_grids(draw: st.DrawFn) -> GridSetting:
    groups, every, bound = draw(st.integers(2, 6)), draw(st.integers(1, 3)), draw(st.integers(0, 4))
    graph = Mixing.on(draw(st.sampled_from(GRAPHS)), groups)
    assume(bound // every <= graph.most_mixings_late())
    return GridSetting(groups=groups, mixing=graph, every=every, bound=bound)


def _total(replicas: Sequence[Replica]) -> np.ndarray:
    return np.sum([replica.flat for replica in replicas], axis=0)


def _total_of_moves(replicas: Sequence[Replica]) -> np.ndarray:
    return np.sum([replica.moves(version) for replica in replicas for version in range(1, NUM_UPDATES + 1)], axis=0)


@settings(max_examples=25)
@given(setting=settings_of_grids(), data=st.data())
def test_in_any_order_replicas_come_to_what_the_matrices_say_and_keep_the_mean(
    setting: GridSetting, data: st.DataObject
):
    replicas = replicas_of(setting, Post())
    interleave(replicas, lambda number: data.draw(st.integers(0, number - 1)))
    expected = by_matrices(setting, lambda group, version: replicas[group].moves(version))
    assert np.stack([replica.flat for replica in replicas]) == pytest.approx(expected, abs=1e-12)
    assert _total(replicas) == pytest.approx(_total_of_moves(replicas), abs=1e-12)


@settings(max_examples=20)
@given(setting=settings_of_grids(), seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_the_order_makes_no_difference_to_the_bit(setting: GridSetting, seeds: tuple[int, int]):
    found = []
    for seed in seeds:
        replicas, random = replicas_of(setting, Post()), np.random.default_rng(seed)
        interleave(replicas, lambda number, random=random: int(random.integers(number)))
        found.append(np.stack([replica.flat for replica in replicas]))
    assert np.array_equal(*found)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compress", ["topk:0.4", "randk:0.4", "qsgd:4", "fp16", "bf16"])
@settings(max_examples=10)
@given(groups=st.integers(2, 5), graph=st.sampled_from(GRAPHS), bound=st.integers(0, 1), seed=st.integers(0, 99))
def test_compressed_mixing_keeps_the_mean(compress: str, groups: int, graph: str, bound: int, seed: int):
    setting = GridSetting(
        groups=groups, mixing=Mixing.on(graph, groups), every=2, bound=bound, compress=parse_compression(compress)
    )
    replicas, random = replicas_of(setting, Post()), np.random.default_rng(seed)
    interleave(replicas, lambda number: int(random.integers(number)))
    assert _total(replicas) == pytest.approx(_total_of_moves(replicas), abs=1e-4)  # estimates are in float32


def test_powersgd_is_refused():
    with pytest.raises(ConfigError, match="powersgd is for gradients; compress what groups mix with qsgd"):
        replicas_of(GridSetting(groups=2, compress=parse_compression("powersgd:2")), Post())


def _mix_without(lost: Sequence[int], setting: GridSetting) -> list[Replica]:
    """The replicas that are left after a mixing, from 0, 1, 2 ..., to which the lost ones did not come."""
    post = Post()
    replicas = replicas_of(setting, post)
    post.gone.update(lost)
    left = [replica for replica in replicas if replica.group not in lost]
    for replica in left:
        replica.move(np.full(SIZE, float(replica.group)))
    for replica in left:
        replica.mixer.begin(1)
    for replica in left:
        replica.mixer.end(1)
    return left


@settings(max_examples=30)
@given(groups=st.integers(2, 8), graph=st.sampled_from(GRAPHS), data=st.data())
def test_neighbours_of_a_lost_group_keep_its_share(groups: int, graph: str, data: st.DataObject):
    mixing = Mixing.on(graph, groups)
    lost = data.draw(st.lists(st.integers(0, groups - 1), max_size=groups - 1, unique=True))
    subsets = itertools.chain.from_iterable(itertools.combinations(lost, number + 1) for number in range(len(lost)))
    assume(not any(mixing.unreached(lost=known) for known in subsets))  # as one replica may know of some of them first
    left = _mix_without(lost, GridSetting(groups=groups, mixing=mixing))
    places = [replica.group for replica in left]
    rest = np.array([[mixing.neighbours(place).get(other, 0.0) for other in places] for place in places])
    rest += np.diag(1 - rest.sum(axis=1))
    expected = rest @ np.array(places, dtype=float)
    assert [replica.flat[0] for replica in left] == pytest.approx(expected)
    assert sum(expected) == pytest.approx(sum(places))
    for replica in left:
        assert set(mixing.neighbours(replica.group)) & set(lost) <= set(replica.lost) == set(replica.mixer.lost)
        assert len(replica.lost) == len(replica.mixer.lost), "each is told of once"


def test_a_loss_that_cuts_the_graph_in_two_ends_the_run_in_one_line():
    path = Mixing.given([[0.7, 0.3, 0.0], [0.3, 0.4, 0.3], [0.0, 0.3, 0.7]])
    with pytest.raises(WorkerLostError, match="group 2 has no way to the others on this graph") as error:
        _mix_without([1], GridSetting(groups=3, mixing=path))
    assert "\n" not in str(error.value)
    assert error.value.ranks == (1,)


def test_a_group_that_only_lost_ones_have_heard_of_counts_as_cut_off():
    """On a ring of 0, 1 and 2 no group is left that would notice that 1 is gone."""
    with pytest.raises(WorkerLostError, match="groups 0, 2 of the grid are lost, and group 3 has no way to the others"):
        _mix_without([0, 1, 2], GridSetting(groups=5, mixing=Mixing.on("ring", 5)))


def test_those_who_are_left_keep_their_mean_from_then_on():
    """A group leaves between two mixings, and says so to its neighbours."""
    setting, post = GridSetting(groups=5, mixing=Mixing.on("ring", 5)), Post()
    replicas = replicas_of(setting, post)
    interleave(replicas, lambda number: 0, num_updates=3)
    leaving, left = replicas[2], [*replicas[:2], *replicas[3:]]
    leaving.mixer.leave("it is tired")
    before = _total(left)
    for replica in left:
        replica.mixer.begin(4)
    for replica in left:
        replica.mixer.end(4)
    assert _total(left) == pytest.approx(before, abs=1e-12)
    assert [replica.lost for replica in left if 2 in replica.mixer.neighbours] == [[2], [2]]


@settings(max_examples=20)
@given(graph=st.sampled_from(GRAPHS), groups=st.integers(1, 5), data=st.data())
def test_after_groups_are_lost_and_join_the_mean_is_kept_and_all_come_to_it(
    graph: str, groups: int, data: st.DataObject
):
    first = Formation.first(GridSetting(groups=groups, mixing=Mixing.on(graph, groups)))
    lost = data.draw(st.lists(st.integers(0, groups - 1), max_size=groups - 1, unique=True))
    formation = first.after(
        GroupChange(7, lost=tuple((group, 0) for group in sorted(lost)), joined=(groups, groups + 1))
    )
    post, replicas = Post(), []
    for place, group in enumerate(formation.groups):
        weights = [torch.full((SIZE,), 1.0 + (group if group < groups else formation.groups[0]), dtype=torch.float64)]
        links = MemoryLinks(post, group)
        mixer = Mixer(
            weights, formation=formation, links=links, place=GridPlace(group, 0), seed=0, news=News(), on_lost=int
        )
        machine = StageMachine(formation.setting, stage=0)
        assert formation.place(group) == place
        replicas.append(Replica(group, weights, mixer, machine, []))
    before = _total(replicas)
    away = [float(np.std([replica.flat[0] for replica in replicas]))]
    for version in range(1, 6):
        for replica in replicas:
            replica.mixer.begin(version)
        for replica in replicas:
            replica.mixer.end(version)
        away.append(float(np.std([replica.flat[0] for replica in replicas])))
        assert _total(replicas) == pytest.approx(before, abs=1e-9)
    rho = formation.setting.mixing.rho
    assert all(now <= rho * then + 1e-12 for then, now in itertools.pairwise(away))


class _GoneAfterSending:
    """Links whose other end takes what is sent, and is gone when something is wanted of it."""

    rank = 0

    def send(self, message: torch.Tensor, *, to: int, tag: int, most: int = 2) -> None:
        pass

    def expect(self, num_bytes: int, *, source: int, tag: int) -> Inbox:
        class Nothing:
            def wait(self) -> torch.Tensor:
                raise PeerGoneError(source)

        return Nothing()

    def flush(self, to: int) -> None:
        pass


def test_a_group_that_is_lost_during_a_checkpoint_is_lost_and_no_more():
    lost: list[int] = []
    setting = GridSetting.parse("2x1,every=4,bound=3")
    mixer = Mixer(
        [torch.ones(3)],
        formation=Formation.first(setting),
        links=_GoneAfterSending(),
        place=GridPlace(0, 0),
        seed=0,
        news=News(),
        on_lost=lost.append,
    )
    mixer.begin(4)
    mixer.state()
    assert lost == [1]
