"""The best interval between two states of a run on machines that fail, by `plesio.cost.reliability` (Daly 2006)."""

from plesio.core.checks import check_count, check_positive
from plesio.cost.reliability import (
    best_interval_s,
    check_run_ends,
    cluster_mtbf_s,
    daly_interval_s,
    slowdown_parts,
    young_interval_s,
)
from plesio_planning.theory.bound import Bound


def checkpoint_interval(
    *, checkpoint_s: float = 300.0, host_mtbf_s: float = 1260 * 60, num_hosts: int = 1, restart_s: float = 0.0
) -> Bound:
    """Saving a run's state: the best interval, and the share of useful time that saving and failing cost on top.

    ``M e^(R/M) (e^((I+C)/M) - 1)/I - 1`` at the I that makes it least (Daly 2006), with ``M = M_host/n``; beside it the
    intervals of Young (1974), ``√(2CM)``, and of Daly (2006).

    >>> bound = checkpoint_interval()
    >>> round(bound.also["best interval (s)"] / 60, 2), round(bound.value, 5)
    (108.94, 0.09464)

    Args:
        checkpoint_s: C, seconds to write a state.
        host_mtbf_s: M_host, mean seconds between two failures of one host.
        num_hosts: n, hosts that the run cannot go on without.
        restart_s: R, seconds from a failure until the last state is back.

    Raises:
        ConfigError: An argument that is out of range, or a run that would hardly ever end.
    """
    check_positive(host_mtbf_s=host_mtbf_s)
    check_count(num_hosts=num_hosts)
    mtbf_s = cluster_mtbf_s(part_mtbf_s=host_mtbf_s, num_parts=num_hosts)
    best_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    times = {"interval_s": best_s, "checkpoint_s": checkpoint_s, "mtbf_s": mtbf_s, "restart_s": restart_s}
    check_run_ends(
        **times, remedy="a longer `host_mtbf_s`, a smaller `num_hosts`, or a shorter `checkpoint_s` or `restart_s`"
    )
    return Bound(
        quantity="overhead at the best interval",
        unit="share",
        parts=slowdown_parts(**times),
        also={
            "best interval (s)": best_s,
            "Young's interval (s)": young_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s),
            "Daly's interval (s)": daly_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s),
            "time between failures (s)": mtbf_s,
        },
    )
