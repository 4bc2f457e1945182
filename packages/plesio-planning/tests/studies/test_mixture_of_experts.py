import numpy as np
import pytest
from scipy import stats

from plesio.core.errors import ConfigError
from plesio.cost.collectives import all_to_all_s, unequal_all_to_all_s
from plesio.cost.link import Link
from plesio_planning.studies import mixture_of_experts
from plesio_planning.studies.expert_routing import draw_routing
from plesio_planning.studies.models.mixture_of_experts import MixtureOfExperts
from plesio_planning.studies.published_all_to_all import fit_published


@pytest.fixture(scope="module")
def answer() -> MixtureOfExperts:
    return mixture_of_experts()


def test_reference_values_of_zipf(answer: MixtureOfExperts):
    """studies/reference.md, study 12: with many tokens, and drawn within the confidence interval."""
    at = answer.at
    assert at.load_limit == pytest.approx(13.5, abs=0.05)
    assert at.dropped_limit == pytest.approx(0.42, abs=0.005)
    assert at.load_ci95[0] <= at.load_limit <= at.load_ci95[1]
    assert at.dropped_ci95[0] <= at.dropped_limit <= at.dropped_ci95[1]
    (milder,) = (one for one in answer.by_skew if one.skew == 0.5)
    assert milder.load_limit == pytest.approx(4.4, abs=0.05)
    assert milder.dropped_limit == pytest.approx(0.15, abs=0.005)
    assert milder.dropped == pytest.approx(0.15, abs=0.005)


def test_reference_values_of_uniform_routing():
    at = mixture_of_experts(num_experts=1000, tokens_per_device=32_000, skew=0.0).at
    assert at.load == pytest.approx(1.21, abs=0.01)
    counts = np.arange(320, 600)
    exact = float(((counts - 320) * stats.binom.pmf(counts, 256_000, 1 / 1000)).sum()) / 256
    assert exact < 1e-6
    assert at.dropped_ci95[0] <= exact <= max(at.dropped_ci95[1], 1e-6)


def test_more_skew_takes_longer_and_spreading_helps(answer: MixtureOfExperts):
    by_skew = answer.by_skew
    times_s = [one.all_to_all_s for one in by_skew]
    assert times_s == sorted(times_s)
    for one in by_skew[1:]:
        assert one.spread_s < one.all_to_all_s
        assert one.capped_s < one.all_to_all_s


def test_uniform_routing_of_many_tokens_takes_as_long_as_a_balanced_all_to_all():
    uniform = mixture_of_experts(skew=0.0, tokens_per_device=1_000_000, num_trials=2)
    assert uniform.at.all_to_all_s == pytest.approx(uniform.balanced_s, rel=0.01)
    assert uniform.at.dropped == 0


def test_a_tokens_experts_are_different(answer: MixtureOfExperts):
    at = mixture_of_experts(experts_per_token=2, num_trials=2, tokens_per_device=2048).at
    assert at.load_limit < answer.at.load_limit  # nobody is chosen twice
    one_left = mixture_of_experts(
        num_experts=4, num_devices=2, experts_per_token=3, num_trials=2, tokens_per_device=512
    ).at
    assert one_left.load <= 4 / 3 + 1e-9


def test_the_balancing_loss_balances(answer: MixtureOfExperts):
    balancing = answer.balancing
    loads = [one.load for one in balancing]
    assert loads == sorted(loads, reverse=True)
    assert balancing[0].load > answer.at.load_limit  # without it, the popular become more popular
    assert balancing[-1].dropped < 0.1 * balancing[0].dropped


def test_three_constants_fit_the_published_table():
    fit = fit_published()
    errors = [abs(one.error) for one in fit.predictions]
    assert max(errors) < 0.08
    assert float(np.median(errors)) < 0.03
    assert float(np.median([abs(one.baseline_error) for one in fit.predictions])) > 0.15
    assert fit.bytes_per_s < 50e9 < fit.node_bytes_per_s < 200e9  # a NIC of 400 Gbit/s, NVLink of an H800


def test_the_busiest_port_decides():
    equal = np.full((4, 4), 1e6)
    assert unequal_all_to_all_s(equal, link=Link(latency_s=1e-6, bytes_per_s=1e9)) == pytest.approx(
        all_to_all_s(4e6, num_ranks=4, link=Link(latency_s=1e-6, bytes_per_s=1e9))
    )
    to_one = np.zeros((4, 4))
    to_one[:, 0] = 1e6
    assert unequal_all_to_all_s(to_one, link=Link(latency_s=0, bytes_per_s=1e9)) == 3e-3
    assert unequal_all_to_all_s(to_one.T, link=Link(latency_s=0, bytes_per_s=1e9)) == 3e-3
    assert unequal_all_to_all_s(equal, link=Link(latency_s=0, bytes_per_s=1e9), duplex=0.0) == 6e-3
    with pytest.raises(ConfigError, match="write 0"):
        unequal_all_to_all_s(equal, link=Link(latency_s=0, bytes_per_s=1e9), duplex=2.0)
    for wrong in ([[1.0, 2.0]], [[0.0, -1.0], [0.0, 0.0]]):
        with pytest.raises(ConfigError, match="write"):
            unequal_all_to_all_s(wrong, link=Link(latency_s=0, bytes_per_s=1e9))


def test_two_experts_in_turn_are_what_clocks_choose() -> None:
    popularity = np.array([0.5, 0.3, 0.15, 0.05])
    counts = draw_routing(popularity, num_devices=2, tokens=50_000, top_k=2, random=np.random.default_rng(0))
    second = popularity * ((popularity / (1 - popularity)).sum() - popularity / (1 - popularity))
    assert counts.sum(axis=1).tolist() == [100_000, 100_000]
    assert counts.sum(axis=0) / 100_000 == pytest.approx(popularity + second, abs=0.006)
