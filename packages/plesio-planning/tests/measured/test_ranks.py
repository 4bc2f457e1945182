import os
from collections.abc import Sequence

import pytest

from plesio.core.errors import ConfigError, PlesioError
from plesio.testbed.namespaces import why_no_namespaces
from plesio_planning.measured.ranks import Ranks, fitted_links, ranks_on_hosts, slowest_s
from support.ranks import barriers, dying, failing, summed, where

NO_NAMESPACES = why_no_namespaces()


def test_every_rank_runs_the_function_in_one_group():
    with Ranks(3) as ranks:
        assert ranks.run(summed, number=2.0) == [(0, 12.0), (1, 12.0), (2, 12.0)]
        assert set(ranks.run(where)) == {os.stat("/proc/self/ns/net").st_ino}


@pytest.mark.parametrize(
    ("function", "why"), [(failing, "rank 0 has had enough"), (dying, "rank 1 ended with status 3")]
)
def test_a_rank_that_fails_is_an_error(function: object, why: str):
    with Ranks(2) as ranks, pytest.raises(PlesioError, match=why):
        ranks.run(function)  # type: ignore[arg-type]


@pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))
def test_ranks_are_on_hosts_of_their_own():
    with ranks_on_hosts(4, ranks_per_host=2, bytes_per_s=50e6) as ranks:
        places = ranks.run(where)
        assert places[0] == places[1] != places[2] == places[3]
        assert os.stat("/proc/self/ns/net").st_ino not in places
        assert ranks.run(summed, number=1.0)[3] == (3, 10.0)


def test_without_namespaces_there_is_no_measuring_over_links(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plesio.testbed.testbed.why_no_namespaces", lambda: "only root can")
    with pytest.raises(ConfigError, match="only root can"), ranks_on_hosts(2, bytes_per_s=1e6):
        pass


def test_a_repeat_lasts_from_the_last_begin_to_the_last_end():
    assert slowest_s([[(0.0, 2.0), (5.0, 6.0)], [(1.0, 1.5), (4.0, 9.0)]]) == [1.0, 4.0]


def test_timing_counts_repeats_and_not_the_warm_up():
    with Ranks(2) as ranks:
        (first, second) = ranks.run(barriers, repeats=4)
    assert len(first) == len(second) == 4
    assert all(begun_s <= ended_s for begun_s, ended_s in first)


def test_ranks_that_are_still_referred_to_leave_no_sockets():
    ranks = Ranks(2)
    before = set(os.listdir("/proc/self/fd"))
    ranks.__exit__(None, None, None)
    assert len(set(os.listdir("/proc/self/fd"))) < len(before)
    assert ranks._processes.store is None


class Disturbed:
    """Measures all-reduces of two ranks of 1 MB/s; what comes first seems to take as long as the largest message."""

    def __init__(self, disturbed: int) -> None:
        self.asked: list[int] = []
        self._disturbed = disturbed

    def __call__(self, size: int) -> Sequence[float]:
        self.asked.append(size)
        return 3 * [0.5 if len(self.asked) <= self._disturbed else 1e-3 + size / 1e6]


@pytest.mark.parametrize(("disturbed", "rounds"), [(0, 1), (3, 2)])
def test_times_that_say_nothing_are_measured_again(disturbed: int, rounds: int):
    measure = Disturbed(disturbed)
    links = fitted_links([1_000, 10_000, 100_000], measure, num_ranks=2)
    assert len(measure.asked) == 3 * rounds
    assert links.bytes_per_s == pytest.approx(1e6, rel=0.05)


def test_a_machine_that_never_tells_sizes_apart_is_an_error():
    measure = Disturbed(1_000)
    with pytest.raises(ConfigError, match="do not rise with the size"):
        fitted_links([1_000, 10_000, 100_000], measure, num_ranks=2)
    assert len(measure.asked) == 15
