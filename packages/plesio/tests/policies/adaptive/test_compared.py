import pytest

from plesio.policies.adaptive.compared import ComparedSetting, TrialEnd, compared_in, trial_end_in

BSP = ComparedSetting(spec="bsp", step_s=0.04, worth_low=1.0, worth_high=1.0, score=0.0)
LOCAL = ComparedSetting(
    spec="local_sgd:2,inner_rate=0.5,compress=qsgd:8", step_s=0.02, worth_low=0.9, worth_high=0.96, score=0.5
)


def test_what_a_decision_keeps_reads_back_the_best_first():
    inputs = BSP.inputs | {"trial.excess": 0.1, "other": 1.0} | LOCAL.inputs
    assert compared_in(inputs) == [LOCAL, BSP]
    assert LOCAL.progress_per_s == pytest.approx((45.0, 48.0))


def test_a_figure_that_was_not_finite_is_not_kept_and_neither_is_its_setting():
    inputs = BSP.inputs | {name: value for name, value in LOCAL.inputs.items() if not name.endswith("step_s")}
    assert compared_in(inputs) == [BSP]


@pytest.mark.parametrize(
    "end", [TrialEnd(excess=0.3, most=0.2), TrialEnd(excess=0.1, most=0.2, worth_low=0.8, worth_high=1.1)]
)
def test_the_end_of_a_trial_reads_back(end: TrialEnd):
    assert trial_end_in(BSP.inputs | end.inputs) == end
    assert end.failed == (end.excess > end.most)


def test_without_a_trial_none_ended():
    assert trial_end_in(BSP.inputs) is None
