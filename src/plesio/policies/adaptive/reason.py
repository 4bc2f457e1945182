"""Why a setting is chosen, in words: a step under it, under BSP, and under the best of what it was compared with."""

from collections.abc import Mapping, Sequence

from plesio.policies.adaptive.setting import IN_LOW_RANK, SYNCHRONOUS, Sent, Setting

__all__ = ["reason_of"]


def reason_of(setting: Setting, predicted: Mapping[Setting, float], *, affordable: Sequence[Setting]) -> str:
    """A clause on ``setting``.

    Args:
        setting: The one that is chosen.
        predicted: Seconds of a step, by setting.
        affordable: The settings that it was compared with.
    """
    step_s, bsp_s = predicted[setting], predicted[SYNCHRONOUS]
    if setting == SYNCHRONOUS:
        return f"no slack saves enough: bsp takes {bsp_s * 1e3:.3g} ms a step"
    for_a_gain = setting == IN_LOW_RANK or (setting.by_racks and (setting.sent is Sent.ROUNDED or setting.on_store))
    others_s = [predicted[one] for one in affordable if for_a_gain or one.by_racks != setting.by_racks]
    if not others_s:
        return f"a step takes {step_s * 1e3:.3g} ms and would take {bsp_s * 1e3:.3g} ms under bsp"
    how = "by single workers" if setting.by_racks else "by racks"
    if setting == IN_LOW_RANK:
        how = "if gradients were not sent in low rank"
    elif for_a_gain:
        how = "if racks did not share the store" if setting.on_store else "without rounding between racks"
    return (
        f"a step takes {step_s * 1e3:.3g} ms and would take {bsp_s * 1e3:.3g} ms under bsp, and at best "
        f"{min(others_s) * 1e3:.3g} ms {how}"
    )
