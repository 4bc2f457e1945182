"""Two long runs whose failures were described: whether a host fails as often in both, and what they could afford.

BLOOM: 384 A100, about a failure a week, 2.3 TB of state in 40 s (Scao et al. 2022). Llama 3 405B: 16 384 H100, 419
interruptions in 54 days, over 90 % of the time effective (Grattafiori et al. 2024, section 3.3.4).
"""

from plesio.core.charts import Table
from plesio.core.units import format_percent, format_seconds
from plesio.cost.reliability import best_interval_s, cluster_mtbf_s, expected_slowdown

__all__ = ["most_checkpoint_s", "published_failures"]

_DAY_S = 86400.0
_DEVICES_PER_HOST = 8
_LLAMA_HOSTS, _LLAMA_FAILURES, _LLAMA_S, _LLAMA_EFFECTIVE = 16384 // _DEVICES_PER_HOST, 419, 54 * _DAY_S, 0.9
_BLOOM_HOSTS, _BLOOM_MTBF_S, _BLOOM_CHECKPOINT_S = 384 // _DEVICES_PER_HOST, 7 * _DAY_S, 40.0


def most_checkpoint_s(*, overhead: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the longest C that costs no more than ``overhead`` at its best interval; 0 if none does.

    >>> round(most_checkpoint_s(overhead=0.09464, mtbf_s=21 * 3600) / 60, 1)
    5.0
    """

    def costs(checkpoint_s: float) -> float:
        best_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
        return expected_slowdown(interval_s=best_s, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s, restart_s=restart_s) - 1

    low_s, high_s = 0.0, mtbf_s
    for _ in range(50):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (middle_s, high_s) if costs(middle_s) <= overhead else (low_s, middle_s)
    return low_s


def published_failures() -> Table:
    """Compare the model's figures for both runs with the published ones."""
    llama_mtbf_s = _LLAMA_S / _LLAMA_FAILURES
    bloom_host_s, llama_host_s = _BLOOM_MTBF_S * _BLOOM_HOSTS, llama_mtbf_s * _LLAMA_HOSTS
    scaled_s = cluster_mtbf_s(part_mtbf_s=bloom_host_s, num_parts=_LLAMA_HOSTS)
    bloom = {"checkpoint_s": _BLOOM_CHECKPOINT_S, "mtbf_s": _BLOOM_MTBF_S}
    bloom_best_s = best_interval_s(**bloom)
    bloom_slowdown = expected_slowdown(interval_s=bloom_best_s, **bloom)
    error = 100 * (scaled_s / llama_mtbf_s - 1)
    budget = 1 / _LLAMA_EFFECTIVE - 1
    afford = [
        format_seconds(most_checkpoint_s(overhead=budget, mtbf_s=llama_mtbf_s, restart_s=restart_s))
        for restart_s in (0.0, 300.0, 600.0)
    ]
    rows = [
        ("BLOOM: a host fails every", f"{bloom_host_s / _DAY_S:.0f} days"),
        ("Llama 3: a host fails every", f"{llama_host_s / _DAY_S:.0f} days"),
        (
            "Llama 3's time between failures from BLOOM's hosts",
            f"{scaled_s / 3600:.2f} h, published {llama_mtbf_s / 3600:.2f} h ({error:+.0f} %)",
        ),
        (
            f"BLOOM's {_BLOOM_CHECKPOINT_S:g} s are best every",
            f"{format_seconds(bloom_best_s)}, overhead {format_percent(bloom_slowdown - 1, digits=2)}",
        ),
        (
            f"Llama 3's over {100 * _LLAMA_EFFECTIVE:g} % useful leave for a state",
            f"{afford[0]}; {afford[1]} with restarts of 5 min; {afford[2]} with 10 min",
        ),
    ]
    return Table(title="Against published runs:", headers=("what", "model"), rows=rows)
