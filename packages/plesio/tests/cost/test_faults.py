"""Faults of a job come in the order of time, are repeatable, and have the given lifetimes."""

import math
from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError, PlesioError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Failures, Fault, faults_in_order

NUM_LIVES = 4000


@pytest.mark.parametrize("shape", [0.7, 1.0, 3.0])
def test_lifetimes_have_the_mean_and_the_tail_asked_for(shape: float):
    failures = Failures(mtbf_s=50.0, shape=shape)
    lives_s = np.array([failures.lifetime_s(worker, seed=0) for worker in range(NUM_LIVES)])
    # Weibull: E[t²] = scale² gamma(1 + 2/shape). Five standard errors of the mean.
    cv = math.sqrt(math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1)
    assert lives_s.mean() == pytest.approx(50.0, rel=5 * cv / NUM_LIVES**0.5)
    # P(t > mean) = exp(-gamma(1 + 1/shape) ** shape); a share's standard error is below 0.8 %, five of them.
    assert (lives_s > 50.0).mean() == pytest.approx(math.exp(-(math.gamma(1 + 1 / shape) ** shape)), abs=0.04)


def test_every_worker_fails_once_and_nobody_comes_back_unless_asked_for():
    faults = list(faults_in_order(300, failures=Failures(mtbf_s=50.0), seed=1))
    assert [fault.kind for fault in faults] == ["lose"] * 300
    assert sorted(fault.worker for fault in faults) == list(range(300))
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)


def test_replaced_workers_fail_at_the_rate_of_their_mtbf():
    failures = Failures(mtbf_s=100.0, rejoin_after_s=25.0)
    horizon_s = 40_000.0
    faults = list(takewhile(lambda fault: fault.at_s < horizon_s, faults_in_order(8, failures=failures, seed=3)))
    losses = sum(fault.kind == "lose" for fault in faults)
    # Each of 8 places is renewed every 125 s: 2,560 losses. Renewals vary by 100/125 of their root, 1.6 %; five of it.
    assert losses == pytest.approx(8 * horizon_s / 125.0, rel=5 * 0.016)


@given(
    num_workers=st.integers(1, 5),
    seed=st.integers(0, 100),
    mtbf_s=st.floats(0.1, 1e3),
    rejoin_after_s=st.none() | st.floats(0.0, 10.0),
    joins_s=st.lists(st.floats(0.0, 20.0), max_size=3),
    loss_s=st.none() | st.floats(0.0, 20.0),
)
def test_only_who_is_there_is_lost_and_all_is_in_order(
    num_workers: int,
    seed: int,
    mtbf_s: float,
    rejoin_after_s: float | None,
    joins_s: list[float],
    loss_s: float | None,
):
    given_faults = [Fault(at_s=at_s, kind="join") for at_s in joins_s]
    if loss_s is not None:
        given_faults.append(Fault(at_s=loss_s, kind="lose", worker=0))
    failures = Failures(mtbf_s=mtbf_s, rejoin_after_s=rejoin_after_s)
    once, again = (
        list(islice(faults_in_order(num_workers, given=given_faults, failures=failures, seed=seed), 40))
        for _ in range(2)
    )
    assert once == again
    present, next_rank, now_s = set(range(num_workers)), num_workers, 0.0
    for fault in once:
        assert fault.at_s >= now_s
        now_s = fault.at_s
        if fault.kind == "join":
            present.add(next_rank)
            next_rank += 1
        else:
            present.remove(fault.worker)  # KeyError: lost twice, or never there


def test_what_is_given_happens_in_any_case_and_in_time():
    given_faults = [Fault(at_s=3.0, kind="join"), Fault(at_s=2.0, kind="lose", worker=2)]
    assert list(faults_in_order(4, given=given_faults)) == given_faults[::-1]
    assert list(faults_in_order(4)) == []


def test_who_was_lost_on_purpose_is_not_replaced_and_does_not_fail_again():
    failures = Failures(mtbf_s=1e6, rejoin_after_s=1.0)
    faults = faults_in_order(1, given=[Fault(at_s=1.0, kind="lose", worker=0)], failures=failures)
    assert [(fault.at_s, fault.kind) for fault in faults] == [(1.0, "lose")]


def test_seeds_differ():
    first, second = (list(faults_in_order(4, failures=Failures(mtbf_s=10.0), seed=seed)) for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fault(at_s=-1.0, kind="join"),
        lambda: Fault(at_s=math.inf, kind="join"),
        lambda: Fault(at_s=1.0, kind="lose"),
        lambda: Fault(at_s=1.0, kind="join", worker=2),
        lambda: Failures(mtbf_s=0.0),
        lambda: Failures(mtbf_s=math.inf),
        lambda: Failures(mtbf_s=1.0, shape=0.01),
        lambda: Failures(mtbf_s=1.0, rejoin_after_s=-1.0),
    ],
)
def test_impossible_faults_are_refused(make: type[PlesioError]):
    with pytest.raises(ConfigError, match=r"write|needs|leave out"):
        make()


CHURN = """
hosts = 4
workers_per_host = 2
[nic]
bandwidth = "1 Gbit/s"
[failures]
mtbf = "100 s"
shape = 0.7
repair = "10 s"
[preemption]
hosts = 1
mtbf = "50 s"
repair = "5 s"
[scavenged]
hosts = 2
stay = "20 s"
away = "30 s"
"""


def in_a_cluster(text: str, *, num_workers: int = 8, until_s: float = 2000.0, seed: int = 0) -> list[Fault]:
    hosts = Cluster.from_toml(text, name="cluster").inconstant_hosts(num_workers)
    return list(takewhile(lambda fault: fault.at_s < until_s, faults_in_order(num_workers, hosts=hosts, seed=seed)))


def test_a_host_goes_and_comes_with_all_its_workers():
    only_failures = CHURN[: CHURN.index("[preemption]")]
    first = in_a_cluster(only_failures)
    lost = [fault for fault in first if fault.kind == "lose"]
    pairs = [(one.at_s, one.worker, other.at_s, other.worker) for one, other in zip(lost[::2], lost[1::2], strict=True)]
    assert all(at_s == other_s and worker + 1 == other for at_s, worker, other_s, other in pairs)
    joined = [fault.at_s for fault in first if fault.kind == "join"]
    repaired = sorted(at_s + 10.0 for at_s, *_ in pairs for _ in range(2))
    assert joined == pytest.approx(repaired[: len(joined)])


def test_workers_are_lost_once_and_only_when_they_have_come():
    there, lost = 8, set[int]()
    for fault in in_a_cluster(CHURN):
        if fault.kind == "join":
            there += 1
        else:
            assert fault.worker < there
            assert fault.worker not in lost
            lost.add(fault.worker)
    assert len(lost) > 50


def test_scavenged_hosts_are_there_for_their_share_of_the_time():
    text = CHURN[: CHURN.index("[failures]")] + CHURN[CHURN.index("[scavenged]") :]
    horizon_s, there, worker_s, since_s = 50_000.0, 0, 0.0, 0.0
    for fault in in_a_cluster(text, until_s=horizon_s):
        worker_s += there * (fault.at_s - since_s)
        since_s = fault.at_s
        there += 1 if fault.kind == "join" else -1
    # two hosts of two workers, 20 of 50 s; a cycle's share varies by 0.34, of 2000 cycles by 0.008: five of it
    assert worker_s / horizon_s == pytest.approx(4 * 20 / 50, abs=4 * 5 * 0.008)


def test_one_seed_is_one_fate():
    assert in_a_cluster(CHURN, seed=3) == in_a_cluster(CHURN, seed=3)
    assert in_a_cluster(CHURN, seed=3) != in_a_cluster(CHURN, seed=4)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('mtbf = "100 s"\n', "", r"\[failures\] has no mtbf"),
        ('mtbf = "100 s"', "mtbf = 100", "mtbf: 100 has no unit"),
        ("hosts = 2\n", "", r"\[scavenged\] has no hosts; write it as in hosts = 2"),
        ("hosts = 2\n", "hosts = 0\n", r"\[scavenged\]: hosts: 0 is not possible; write 1 to 4096"),
        ("hosts = 2\n", "hosts = 1000000\n", r"\[scavenged\]: hosts: 1000000 is not possible"),
        ('stay = "20 s"', 'stay = "0 s"', r"\[scavenged\]: stay: 0 s is no time to be there"),
        ("hosts = 1\n", "hosts = 5\n", r"\[preemption\] of 5 hosts; there are 4"),
        ('away = "30 s"', 'repair = "30 s"', 'unknown key "repair"|has no away'),
        ("shape = 0.7", "shape = 0", "shape"),
    ],
)
def test_bad_tables_are_refused_in_a_line(before: str, after: str, message: str):
    assert before in CHURN
    with pytest.raises(ConfigError, match=message) as error:
        in_a_cluster(CHURN.replace(before, after, 1))
    assert "\n" not in str(error.value)
