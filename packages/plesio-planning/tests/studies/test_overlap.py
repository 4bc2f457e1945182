import itertools

import pytest

from plesio.cost.buckets import (
    Bucketing,
    Layers,
    best_buckets,
    best_cap_bytes,
    buckets_of_bytes,
    buckets_of_layers,
    caps_bytes,
    ddp_buckets,
)
from plesio.sim.kernel import Kernel
from plesio_planning.studies import overlap

UNEQUAL = Layers(
    seconds=(0.3, 0.1, 0.7, 0.2, 0.0, 0.5, 0.4, 0.1, 0.6), bytes=(9.0, 4.0, 1.0, 7.0, 30.0, 2.0, 2.0, 5.0, 11.0)
)


def all_reduce_s(num_bytes: float) -> float:
    return 0.15 + num_bytes / 30


def test_reference_values():
    """studies/reference.md, study 10."""
    answer = overlap()
    for count, ms in ((1, 550), (2, 486), (16, 494), (96, 541)):
        assert round(1e3 * answer.by_layers[count].end_s) == ms
    assert answer.best_layers == 2
    assert answer.best_cap_bytes == pytest.approx(2 * 700e6 / 96)


def test_the_knee_is_where_buckets_keep_up():
    """k >= 2(n-1)α / (t - 2(n-1)/n g/B) = 1.15 layers."""
    knee = 2 * 255 * 10e-6 / (5e-3 - 2 * 255 / 256 * 700e6 / 96 / 25e9)
    answer = overlap()
    assert 1 < knee < 2 == answer.best_layers
    assert answer.by_layers[1].exposed_s > answer.by_layers[1].all_reduces_s / 96 + 1e-9
    for count in (2, 3, 4, 48):
        assert answer.by_layers[count].exposed_s == pytest.approx(answer.by_layers[count].all_reduces_s * count / 96)


@pytest.mark.parametrize("shape", ["equal", "tapered", "embedding"])
@pytest.mark.parametrize("bytes_per_s", [1e9, 25e9, 1e12])
def test_times_are_between_the_bounds(shape: str, bytes_per_s: float):
    answer = overlap(profile=shape, bytes_per_s=bytes_per_s, num_layers=24)  # type: ignore[arg-type]
    assert answer.layers.backward_s == pytest.approx(0.480)
    assert sum(answer.layers.bytes) == pytest.approx(700e6)
    every = [*answer.by_layers.values(), *answer.by_cap.values(), answer.best, answer.default]
    for buckets in every:
        assert buckets.end_s >= answer.optimum.end_s * (1 - 1e-12)
        assert -1e-12 <= buckets.hidden_share <= 1
        assert sum(buckets.bytes) == pytest.approx(700e6)
    assert answer.optimum.end_s >= max(answer.hidden_entirely_s, answer.least_s) * (1 - 1e-12)
    assert answer.whole.end_s == pytest.approx(answer.layers.backward_s + answer.whole.all_reduces_s)
    assert answer.best.end_s <= min(each.end_s for each in answer.by_cap.values()) * (1 + 1e-9)


def test_an_embedding_is_exposed_whatever_the_buckets():
    answer = overlap(profile="embedding")
    assert answer.optimum.exposed_s >= overlap(profile="equal").optimum.exposed_s * 2
    assert answer.optimum.end_s >= answer.least_s


def test_no_way_to_fill_buckets_beats_the_optimum():
    num_layers = len(UNEQUAL)
    ways = itertools.product([False, True], repeat=num_layers - 1)
    ends = [[*(place for place, cut in enumerate(way, start=1) if cut), num_layers] for way in ways]
    assert best_buckets(UNEQUAL, all_reduce_s).end_s == pytest.approx(min(map(simulated_end_s, ends)))


def test_the_best_limit_is_the_best_of_all_limits():
    best = buckets_of_bytes(UNEQUAL, best_cap_bytes(UNEQUAL, all_reduce_s), all_reduce_s)
    limits = [0.1 * step for step in range(1, 800)]
    assert best.end_s == pytest.approx(min(buckets_of_bytes(UNEQUAL, cap, all_reduce_s).end_s for cap in limits))


def test_limits_between_sums_of_layers_fill_alike():
    caps = caps_bytes(UNEQUAL, most=1000)
    for low, high in itertools.pairwise(caps):
        middle = buckets_of_bytes(UNEQUAL, (low + high) / 2, all_reduce_s)
        assert middle == buckets_of_bytes(UNEQUAL, high, all_reduce_s)
    assert len(caps_bytes(UNEQUAL, most=5)) == 5


def test_the_recurrence_is_what_an_event_queue_gives():
    for count in (1, 2, 4, 9):
        ends = [*range(count, len(UNEQUAL), count), len(UNEQUAL)]
        assert buckets_of_layers(UNEQUAL, count, all_reduce_s).end_s == pytest.approx(simulated_end_s(ends))


def test_pytorch_closes_its_first_bucket_early_and_the_others_at_25_mib():
    mib = 2.0**20
    layers = Layers(seconds=(1.0,) * 8, bytes=(0.5 * mib, 0.6 * mib, 10 * mib, 10 * mib, 10 * mib, 24 * mib, 9.0, 9.0))
    assert ddp_buckets(layers, all_reduce_s).bytes == pytest.approx((1.1 * mib, 30 * mib, 24 * mib + 18))


def test_one_layer_hides_nothing():
    for shape in ("equal", "tapered", "embedding"):
        answer = overlap(num_layers=1, profile=shape)  # type: ignore[arg-type]
        assert answer.best.hidden_share == pytest.approx(0)
        assert isinstance(answer.default, Bucketing)


def simulated_end_s(ends: list[int]) -> float:
    """Layers that become ready one after another and a stream that takes buckets in order, event by event."""
    kernel = Kernel()
    waiting: list[float] = []
    ended: list[float] = []
    busy = [False]

    def take() -> None:
        if not busy[0] and waiting:
            busy[0] = True
            kernel.after(all_reduce_s(waiting.pop(0)), done)

    def done() -> None:
        busy[0] = False
        ended.append(kernel.now_s)
        take()

    def ready(place: int, filled: float) -> None:
        filled += UNEQUAL.bytes[place]
        if place + 1 in ends:
            waiting.append(filled)
            filled = 0.0
            take()
        if place + 1 < len(UNEQUAL):
            kernel.after(UNEQUAL.seconds[place + 1], lambda: ready(place + 1, filled))

    kernel.after(UNEQUAL.seconds[0], lambda: ready(0, 0.0))
    kernel.run()
    return ended[-1]


def test_the_sentence_has_the_time_of_the_fastest_buckets_in_the_table():
    """One limit takes 540 ms where buckets of different sizes take 498."""
    answer = overlap(num_layers=50, backward_s=0.25, bytes_per_s=3e9)
    assert answer.optimum.end_s < 0.95 * answer.total
    rows = {row[0]: row for table in answer.tables() for row in table.rows}
    assert f"take {rows['the best of different sizes'][3]}" in answer.finding
    assert "buckets of different sizes are no faster" in overlap().finding
