import math

import numpy as np
import pytest

from plesio_planning.studies import loss_scaling
from plesio_planning.studies.compressed_descent import rounded_to_bf16
from plesio_planning.studies.half_precision_descent import LARGEST, SMALLEST, FrequencyScale, LossScale, clipped
from plesio_planning.studies.models.loss_scaling import LossScaling


@pytest.fixture(scope="module")
def answer() -> LossScaling:
    return loss_scaling()


def test_reference_values(answer: LossScaling):
    """studies/reference.md, study 9."""
    for power in range(15, 27):
        assert answer.at(power).overflow < 1e-9
    assert answer.at(28).overflow == pytest.approx(0.015, abs=0.0005)
    assert answer.at(30).overflow == pytest.approx(0.54, abs=0.005)
    lognormal = "lognormal(0, 1)"
    assert answer.at(15, distribution=lognormal).overflow == pytest.approx(0.24, abs=0.005)
    assert answer.at(18, distribution=lognormal).overflow == pytest.approx(0.92, abs=0.005)
    assert answer.run.steady == pytest.approx(1 / 2000, rel=0.01)


def test_limits_are_those_of_fp16():
    with np.errstate(over="ignore"):
        assert np.isinf(np.float64(LARGEST).astype(np.float16))
    assert np.isfinite(np.nextafter(LARGEST, 0).astype(np.float16))
    assert np.float64(SMALLEST).astype(np.float16) == 0
    assert np.nextafter(SMALLEST, 1).astype(np.float16) == np.float16(5.96e-8)  # the smallest subnormal


def test_closed_forms_agree_with_real_casts(answer: LossScaling):
    for one in answer.shares:
        spread = 4 * math.sqrt(one.overflow * (1 - one.overflow) / 20_000) + 1e-4
        assert one.cast_overflow == pytest.approx(one.overflow, abs=spread)
        assert one.cast_vanished == pytest.approx(one.vanished, abs=4 * math.sqrt(one.vanished / 20_000) + 1e-3)


def test_a_dynamic_scale_tries_one_too_large_once_in_an_interval():
    scale = LossScale(8.0, growth_interval=3)
    found = []
    for _ in range(40):
        found.append(scale.value > 8.0)
        scale.update(found_inf=found[-1])
    assert sum(found) == 10  # each fourth step
    assert scale.value == 8.0


def test_a_scale_that_is_too_large_is_searched_from_above():
    searching = loss_scaling(distribution="lognormal", num_steps=5000).run
    assert searching.searching >= 7
    assert searching.powers[-1] <= 9


def test_a_scale_by_frequency_pays_for_every_doubling_with_more_steps_and_ignores_single_spikes(answer: LossScaling):
    scale = FrequencyScale(8.0, interval=10, largest_share=0.2)
    for step in range(100):
        scale.update(found_inf=scale.value > 8.0 or step % 10 == 3)
    assert scale.value in (8.0, 16.0)
    skipped = {rule: run.searching + run.skipped for rule, run in answer.runs.items()}
    assert skipped["static"] == 0, "2^16 fits normal gradients"
    # two of 2,000 steps may overflow, so that the third halves it
    assert skipped["by frequency"] == pytest.approx(3 * skipped["by interval"], rel=0.05)
    assert answer.runs["by frequency"].powers[-1] == answer.run.powers[-1]


def test_a_static_scale_that_is_too_large_skips_every_step():
    static = loss_scaling(distribution="lognormal", num_steps=300, rule="static")
    assert (static.run.applied, static.parts["applied steps"]) == (0, 0.0)
    assert static.run.powers == (16.0, 16.0)
    assert "a static scale skips 300 steps at first" in static.finding
    by_interval = loss_scaling(distribution="lognormal", num_steps=300)
    assert by_interval.run == static.runs["by interval"], "the same steps are drawn"


def test_handlings_go_well_or_wrong_as_they_should(answer: LossScaling):
    loss = {one.name: one.final_loss for one in answer.convergence}
    assert max(loss["FP32"], loss["BF16"], loss["FP16, dynamic"], loss["FP16, static 2^15"]) < 1e-6
    assert loss["FP16, unscaled"] > 0.01  # a part of the gradient vanished
    assert loss["FP16, static 2^36"] == pytest.approx(1)  # every step is skipped
    assert loss["clipped before unscaling"] > 0.9
    assert loss["found_inf not shared"] > 1e-3
    apart = {one.name: one.scales_apart for one in answer.convergence}
    assert apart["FP16, dynamic"] == 1
    assert apart["found_inf not shared"] > 1


def test_only_cutting_infinities_applies_a_wrong_step(answer: LossScaling):
    for losses in answer.overflow_rules.values():
        assert losses["skip the step"] < 1e-6
        assert losses["repeat the update before"] < 1e-6
        assert losses["cut infinities to 65504"] > 1e-4


def test_clipping_a_nan_makes_everything_nan():
    assert np.isnan(clipped(np.array([1.0, math.nan, 2.0]), 1.0)).all()
    assert np.linalg.norm(clipped(np.array([3.0, 4.0]), 1.0)) == pytest.approx(1)


def test_bf16_is_what_torch_makes_of_it():
    torch = pytest.importorskip("torch")
    values = np.concatenate([np.random.default_rng(0).standard_normal(1000), [3e38, 1e-38, 1e-40, 0.0, -1.0]])
    expected = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).double().numpy()
    assert np.array_equal(rounded_to_bf16(values), expected)
