"""Steps of real training over shaped links, measured by others, beside what `plesio.cost` prices them at.

The rows in ``links.csv`` are those of diloco-measured (github.com/Adnan082/diloco-measured, 2026): four hosts with an
L40S each, NCCL over TCP, links shaped by tc and checked by iperf3, 30,846,720 parameters of 32 bits. ``step_ms`` is the
mean of a step after warm-up and ``sync_ms`` the median of a step with an exchange.

Three numbers are fitted, to the rows of ``diloco`` alone, as they are the mean of three runs: the flows that share a
link (`plesio.cost.link.with_timeouts`), the seconds of an exchange besides its links, and those that the first exchange
takes to connect. Nothing is fitted to ``local_sgd`` and ``ddp``. Local SGD and DiLoCo add up all parameters in one
piece; DDP does so in buckets behind the backward pass, each by a double tree
(`plesio.cost.placement.bucket_all_reduce_on`).

Of 200 steps 180 are in the mean: every row's two figures agree to 3 % if 22 of these had an exchange at a period of 8,
and one, the first of the run, at a period of 128.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources

from plesio.core.predictions import Prediction
from plesio.cost.buckets import ddp_exposed_s
from plesio.cost.cluster import Cluster
from plesio.cost.placement import all_reduce_on, bucket_all_reduce_on

FITTED_POLICY = "diloco"
NUM_WORKERS = 4
PARAMETERS_BYTES = 4 * 30_846_720
COMPUTE_S = 24.7e-3
DDP_COMPUTE_S = 21.8e-3
"""Halfway between the 21 and 22.6 ms that DDP's steps are said to compute."""
NUM_STEPS = 180
NUM_EXCHANGES = {8: 22, 128: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """The numbers that are fitted.

    Attributes:
        tcp_flows: Flows that share a link.
        exchange_s: Seconds of an exchange besides its links.
        connect_s: Seconds that the first exchange takes longer.
    """

    tcp_flows: int
    exchange_s: float
    connect_s: float


@dataclass(frozen=True, slots=True)
class _Row:
    policy: str
    period: int
    mbit_per_s: int
    step_s: float
    exchanging_s: float


def _rows() -> list[_Row]:
    text = resources.files("plesio_planning.measured").joinpath("links.csv").read_text(encoding="utf-8")
    return [
        _Row(
            policy=row["policy"],
            period=int(row["H"]),
            mbit_per_s=int(row["mbit_per_s"]),
            step_s=float(row["step_ms"]) / 1e3,
            exchanging_s=float(row["sync_ms"]) / 1e3,
        )
        for row in csv.DictReader(text.splitlines())
    ]


def _cluster(mbit_per_s: int, *, tcp_flows: int | None) -> Cluster:
    flows = "" if tcp_flows is None else f"tcp_flows = {tcp_flows}"
    text = f"""
hosts = {NUM_WORKERS}
device = "L40S"
collectives = "nccl"
backward_share = 0.67
{flows}
[nic]
latency = "0.1 ms"
bandwidth = "{mbit_per_s} Mbit/s"
"""
    return Cluster.from_toml(text, name="four L40S")


def _predicted_s(row: _Row, constants: LinkConstants) -> tuple[float, float]:
    """Return the seconds of a mean step, and of one with an exchange."""
    cluster, ranks = _cluster(row.mbit_per_s, tcp_flows=constants.tcp_flows), range(NUM_WORKERS)
    if row.policy == "ddp":
        bucket_s = partial(bucket_all_reduce_on, cluster, ranks)
        backward_s = cluster.backward_share * DDP_COMPUTE_S
        step_s = DDP_COMPUTE_S + ddp_exposed_s(PARAMETERS_BYTES, backward_s=backward_s, all_reduce_s=bucket_s)
        return step_s, step_s
    exchange_s = constants.exchange_s + all_reduce_on(cluster, ranks, PARAMETERS_BYTES)
    if NUM_EXCHANGES[row.period] == 1:
        exchange_s += constants.connect_s
    return COMPUTE_S + exchange_s * NUM_EXCHANGES[row.period] / NUM_STEPS, COMPUTE_S + exchange_s


def _on_ideal_links_s(row: _Row) -> tuple[float, float]:
    """Return the same as a ring of one message at the links' bandwidth has it."""
    exchange_s = all_reduce_on(_cluster(row.mbit_per_s, tcp_flows=None), range(NUM_WORKERS), PARAMETERS_BYTES)
    share = 1.0 if row.policy == "ddp" else 1 / row.period
    return COMPUTE_S + share * exchange_s, COMPUTE_S + exchange_s


def fit_constants() -> LinkConstants:
    """Fit the constants to the rows of `FITTED_POLICY`: least squares of the relative errors of both figures."""
    from scipy.optimize import least_squares

    rows = [row for row in _rows() if row.policy == FITTED_POLICY]

    def constants(values: Sequence[float]) -> LinkConstants:
        return LinkConstants(tcp_flows=round(values[0]), exchange_s=values[1] / 1e3, connect_s=values[2] / 1e3)

    def errors(values: Sequence[float]) -> list[float]:
        found = []
        for row in rows:
            step_s, exchanging_s = _predicted_s(row, constants(values))
            found += [step_s / row.step_s - 1, exchanging_s / row.exchanging_s - 1]
        return found

    # flows are whole, so each number of them is tried, and the rest is fitted for it
    fits = (
        least_squares(lambda rest, flows=flows: errors([flows, *rest]), [10.0, 100.0], bounds=(0.0, 2000.0))
        for flows in range(1, 129)
    )
    flows, best = min(enumerate(fits, start=1), key=lambda fit: fit[1].cost)
    return constants([flows, *best.x])


def link_predictions(constants: LinkConstants) -> list[Prediction]:
    """Return a prediction for both figures of every row: those held out first, the worst at the top."""
    predictions = [one for row in _rows() for one in _of_row(row, constants)]
    return sorted(predictions, key=lambda one: (one.setting["rows"] != "held out", -abs(one.error)))


def _of_row(row: _Row, constants: LinkConstants) -> list[Prediction]:
    setting: Mapping[str, str] = {
        "rows": "fitted" if row.policy == FITTED_POLICY else "held out",
        "policy": row.policy,
        "period": str(row.period),
        "links": f"{row.mbit_per_s} Mbit/s",
    }
    figures = {"mean step (s)": row.step_s}
    if row.period > 1:
        figures["step with an exchange (s)"] = row.exchanging_s
    values = zip(figures.items(), _predicted_s(row, constants), _on_ideal_links_s(row), strict=False)
    return [
        Prediction(
            setting=setting,
            quantity=quantity,
            scale="relative",
            predicted=predicted,
            measured=measured,
            baseline=baseline,
        )
        for (quantity, measured), predicted, baseline in values
    ]
