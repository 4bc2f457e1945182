"""Reason for a choice, in words: step times of the setting, of BSP, and of the best alternative.

Settings are compared by their *priced* seconds: those in which they get as far as a step with the mean gradient does.
If these differ from the seconds of a step, the clause has both.
"""

from collections.abc import Mapping, Sequence

from plesio.policies.adaptive.system.setting import IN_LOW_RANK, SYNCHRONOUS, Sent, Setting

__all__ = ["reason_of"]


def reason_of(
    setting: Setting,
    predicted: Mapping[Setting, float],
    *,
    priced: Mapping[Setting, float],
    affordable: Sequence[Setting],
) -> str:
    """Return the reason for ``setting``, by a step's seconds and those by which settings were compared."""

    def took(one: Setting) -> str:
        step, price = f"{predicted[one] * 1e3:.3g} ms", f"{priced[one] * 1e3:.3g} ms"
        return step if step == price else f"{step} (priced at {price})"

    bsp = took(SYNCHRONOUS)
    # BSP: the rival is the cheapest of those that would be faster
    if setting == SYNCHRONOUS:
        rivals = [one for one in affordable if predicted[one] < predicted[SYNCHRONOUS]]
        if not rivals:
            return f"no slack saves enough: bsp takes {bsp} a step"
        rival = min(rivals, key=lambda one: priced[one])
        return f"no slack saves enough: bsp takes {bsp} a step, and {rival.spec} would take {took(rival)}"
    # a setting for a gain alone competed with all others; any other with those that step by racks if it does not,
    # and with those of single workers if it does
    for_a_gain = setting == IN_LOW_RANK or (setting.by_racks and (setting.sent is Sent.ROUNDED or setting.on_store))
    others = [one for one in affordable if for_a_gain or one.by_racks != setting.by_racks]
    if not others:
        return f"a step takes {took(setting)} and would take {bsp} under bsp"
    how = "by single workers" if setting.by_racks else "by racks"
    if setting == IN_LOW_RANK:
        how = "if gradients were not sent in low rank"
    elif for_a_gain:
        how = "if racks did not share the store" if setting.on_store else "without rounding between racks"
    best = took(min(others, key=lambda one: priced[one]))
    return f"a step takes {took(setting)} and would take {bsp} under bsp, and at best {best} {how}"
