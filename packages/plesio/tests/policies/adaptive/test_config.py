"""Values out of range are refused by the name that they have in a policy's text, for every component."""

import pytest

from plesio.core.errors import PolicySpecError
from plesio.policies import parse_policy

OUT_OF_RANGE = {
    "system": "gain=0 tolerance=1 memory=2 largest_period=0",
    "topology": "tolerance=0 tolerance=1 largest_period=1",
    "gradient": (
        "trigger=1 norm_trigger=0.5 release=0 release=3 window=3 noise_factor=0 hold_reviews=0 regrow_reviews=0 "
        "largest_slack=0 trigger=nan"
    ),
    "noise": "least_efficiency=1 store_efficiency=0 window=0 noisy_slack=-1 noisy_from=0 least_steps=-1",
    "phase": (
        "direction=middle slack=-1 slack=1.5 rise=1 jump_budget=0 final_share=1 final_budget=1.5 settled_loss=0 "
        "settled_gradient=nan least_fall=-0.1 straightness=half noise_share=0 start_steps=0 setback=0 setback_noise=nan"
    ),
    "feedback": (
        "largest_slack=-1 patience=0 back_off=0 window=7 noise_factor=0 loss_rise=-0.1 metric_fall=0 norm_jump=1"
    ),
    "progress": "window=1 trial=0 keeps=1 most_kept=1 warm_up=-1 rest=-1",
    "guard": (
        "window=15 noise_factor=0 loss_rise=0 worst_rise=-1 speed_jump=1 norm_jump=1 early_rise=nan refused_share=0 "
        "rearm_reviews=0 spike_jump=1 spike_shift=0.5 clipped_share=0 rate_jump=1"
    ),
}


@pytest.mark.parametrize(
    "wrong", [f"{name}.{one}" for name, all_of_it in OUT_OF_RANGE.items() for one in all_of_it.split()]
)
def test_a_value_out_of_range_is_refused(wrong: str):
    # behind the text, which has the name in any case
    with pytest.raises(PolicySpecError, match=rf'": {wrong.partition("=")[0]} is '):
        parse_policy(f"adaptive,{wrong}")
