"""Check statements on collectives, servers, pipelines, precision and failures.

These are A.3, A.4, A.7, A.8, A.11, A.13 to A.15, A.17 and A.18 of the text, and those of its definitions.
"""

import numpy as np

from plesio.cost.reliability import best_interval_s, young_interval_s
from plesio_planning.theory.communication import all_reduce_bytes, asynchronous_rate
from plesio_planning.theory.parallelism import pipeline_bubble
from plesio_planning.theory.stability import spectral_radius
from plesio_planning.theory.statements.statement import Witness


def _ring_cost_is_flat() -> Witness:
    sent = {ranks: all_reduce_bytes(message_bytes=700e6, num_ranks=ranks).value for ranks in (64, 10**6)}
    numbers = {f"bytes that a rank sends of 700 MB, {ranks:,} ranks": each for ranks, each in sent.items()}
    latency_decides = 700e6 / 25e9 / 10e-6
    return Witness(sent[10**6] < 1.02 * sent[64], {**numbers, "ranks from which 10 µs a hop decide": latency_decides})


def _bubbles_allow_linear_speed_up() -> Witness:
    plain = 4 * (1 - pipeline_bubble(pp=4, num_micro_batches=8).value)
    recomputing = plain * 3 / 4
    numbers = {"speed-up of 4 stages, 8 micro-batches": plain, "of them recomputing, 4 passes for 3": recomputing}
    return Witness(recomputing >= 4, numbers)


def _unbiased_compression_is_free() -> Witness:
    """Descent on ‖x‖²/2 with one of ten coordinates, drawn at random and taken ten times; and the text's own ±ε."""
    random, dimension, num_steps, rate = np.random.default_rng(0), 10, 20, 0.1
    sparse, nudged = np.ones((4000, dimension)), np.ones(20_000)
    for _ in range(num_steps):
        rows, chosen = np.arange(len(sparse)), random.integers(dimension, size=len(sparse))
        sparse[rows, chosen] -= rate * dimension * sparse[rows, chosen]
        nudged = nudged - 0.5 * (nudged + random.choice((-0.1, 0.1), size=nudged.size))
    factor = float(np.square(sparse).mean() ** (1 / num_steps))
    numbers = {
        "squared error after a step at αL = 0.1, dense": (1 - rate) ** 2,
        "one of ten coordinates": factor,
        "the same at αL = 0.5, where dense has 0.25": 1 - 2 * 0.5 + 0.5**2 * dimension,
        "variance that ±ε leaves at αL = 0.5, over ε² (the text: 1/12)": float(nudged.var() / 0.1**2),
    }
    return Witness(abs(factor - (1 - rate) ** 2) < 0.01 and nudged.var() < 1e-6, numbers)


def _four_times_the_workers_halve_at_most() -> Witness:
    """Time an iteration of 800 ms of computing for all and a ring all-reduce of 100 MB at 25 GB/s."""
    times_s = {n: 0.8 / n + all_reduce_bytes(message_bytes=100e6, num_ranks=n).value / 25e9 for n in (8, 32)}
    speed_up = times_s[8] / times_s[32]
    numbers = {f"iteration with {workers} workers (s)": each for workers, each in times_s.items()}
    return Witness(speed_up <= 2, {**numbers, "speed-up from 8 to 32": speed_up})


def _servers_move_all_gradients() -> Witness:
    """Bytes that pass all links, in sizes of the gradient: counted where each worker sends one and fetches one."""
    moved = {}
    for workers in (8, 64, 512):
        gradients = np.random.default_rng(0).normal(size=(workers, 100))
        served, sent = np.zeros(100), 0
        for gradient in gradients:  # a worker pushes
            served, sent = served + gradient / workers, sent + gradient.size
        fetched = [served.copy() for _ in gradients]  # and each pulls
        assert np.allclose(fetched, gradients.mean(axis=0))
        moved[workers] = (sent + sum(each.size for each in fetched)) / 100
    ring = 512 * all_reduce_bytes(message_bytes=1.0, num_ranks=512).value
    numbers = {f"gradients on the wire, {workers} workers": each for workers, each in moved.items()}
    return Witness(moved[512] / moved[8] == 64, {**numbers, "of a ring, 512 workers": ring})


def _width_decides_tensor_traffic() -> Witness:
    """Four all-reduces of tokens times width in a layer; 12 h² parameters in each of them."""
    tokens, element_bytes, devices, parameters = 2048, 2, 8, 12 * 96 * 12288**2
    numbers, sent = {}, {}
    for width in (12288, 24576):
        layers = parameters / (12 * width**2)
        message = tokens * width * element_bytes
        sent[width] = 4 * all_reduce_bytes(message_bytes=float(message), num_ranks=devices).value
        numbers[f"bytes a layer, width {width:,}, {layers:.0f} layers"] = sent[width]
        numbers[f"bytes a step, width {width:,}"] = sent[width] * layers
    return Witness(sent[24576] > 1.9 * sent[12288], numbers)


def _held(*, num_stages: int, num_chunks: int) -> float:
    """Most micro-batches whose activations the first device of a 1F1B pipeline holds, in those of all its layers.

    It begins with ``2(p-1) + (v-1)p`` forward passes of its chunks (``p-1`` of the whole where v is 1), does one more,
    and from then on one back for each forward (Narayanan et al. 2021).
    """
    first = num_stages - 1 if num_chunks == 1 else 2 * (num_stages - 1) + (num_chunks - 1) * num_stages
    held, most = 0, 0
    for forward in [True] * (first + 1) + [False, True] * (4 * num_stages):
        held += 1 if forward else -1
        most = max(most, held)
    return most / num_chunks


def _interleaving_holds_no_more() -> Witness:
    plain, interleaved = _held(num_stages=8, num_chunks=1), _held(num_stages=8, num_chunks=4)
    numbers = {
        "micro-batches held, 1F1B, p = 8": plain,
        "interleaved, v = 4": interleaved,
        "GPipe, m = 32": 32.0,
        "bubble, 1F1B, m = 32 (%)": 100 * pipeline_bubble(pp=8, num_micro_batches=32).value,
        "interleaved, m = 32 (%)": 100 * pipeline_bubble(pp=8, num_micro_batches=32, vpp=4).value,
    }
    return Witness(interleaved <= plain, numbers)


def _sent_by_a_node(order: list[int], *, num_nodes: int) -> float:
    """Sizes of the message that leave the busiest node in a ring whose ranks are on the nodes of ``order``."""
    share = all_reduce_bytes(message_bytes=1.0, num_ranks=len(order)).value
    leaving = [0.0] * num_nodes
    for here, there in zip(order, order[1:] + order[:1], strict=True):
        leaving[here] += share if here != there else 0.0
    return max(leaving)


def _two_levels_send_less() -> Witness:
    num_nodes, per_node = 32, 8
    scattered = _sent_by_a_node(list(range(num_nodes)) * per_node, num_nodes=num_nodes)
    in_order = _sent_by_a_node([node for node in range(num_nodes) for _ in range(per_node)], num_nodes=num_nodes)
    two_levels = all_reduce_bytes(message_bytes=1.0, num_ranks=num_nodes).value
    numbers = {
        "messages that leave a node, flat ring, no two neighbours on a node": scattered,
        "flat ring, node by node": in_order,
        "two levels": two_levels,
    }
    return Witness(two_levels < 0.5 * scattered, numbers, holds_otherwise=two_levels < 0.5 * in_order)


def _one_overflow_spoils_all() -> Witness:
    """Eight ranks add up FP16 gradients; one of them has 70,000, beyond 65,504."""
    with np.errstate(over="ignore"):
        gradients = np.array([1.0] * 7 + [7e4]).astype(np.float16)
        plain = float(gradients.sum(dtype=np.float16))
        clipped = float(np.clip(gradients, -8000, 8000).astype(np.float16).sum(dtype=np.float16))
        at_text = float(np.full(8, 1e4, dtype=np.float16).sum(dtype=np.float16))
        not_a_number = float(np.clip(np.array([1.0, np.nan], np.float16), -8000, 8000).sum(dtype=np.float16))
    numbers = {
        "sum of 8 ranks, one of which overflows": plain,
        "clipped at 8000 first": clipped,
        "8 ranks at the text's limit of 10⁴": at_text,
        "a NaN clipped": not_a_number,
    }
    return Witness(not np.isfinite(plain) and bool(np.isfinite(clipped)), numbers)


def _latency_decides_efficiency() -> Witness:
    """800 ms of computing over 128 workers, 10 ms latency and 5 ms of bytes for an exchange, at every K-th step."""
    each_s, exchange_s = 0.8 / 128, 0.015
    efficiency = {period: each_s / (each_s + exchange_s / period) for period in (1, 4, 32)}
    numbers = {f"efficiency, exchange every {period} steps": value for period, value in efficiency.items()}
    numbers["exchange behind two steps of computing"] = each_s / max(each_s, exchange_s / 2)
    return Witness(max(efficiency.values()) < 0.5, numbers)


def _half_full_pipeline() -> Witness:
    bubble = pipeline_bubble(pp=8, num_micro_batches=16).value
    return Witness(bubble < 0.05, {"bubble, p = 8, m = 16 (%)": 100 * bubble})


def _ten_micro_batches() -> Witness:
    bound = pipeline_bubble(pp=8, num_micro_batches=10)
    utilisation = 1 - bound.value
    needed = bound.also["micro-batches for 90 % utilisation"]
    return Witness(utilisation >= 0.9, {"utilisation, m = 10 (%)": 100 * utilisation, "m that is needed": needed})


def _ring_is_below_twice_the_message() -> Witness:
    sent = [all_reduce_bytes(message_bytes=1.0, num_ranks=ranks).value for ranks in (2, 16, 1024, 10**6)]
    return Witness(max(sent) < 2, {"bytes sent over message, largest, n to 10⁶": max(sent)})


def _compression_speeds_up_all_reduces() -> Witness:
    """Compute the speed-up by 4, for a megabyte over 255 hops of a ring with 10 µs and 50 GB/s."""
    latency_s = 2 * 255 * 10e-6
    plain_s, packed_s = (latency_s + all_reduce_bytes(message_bytes=size).value / 50e9 for size in (1e6, 0.25e6))
    return Witness(plain_s / packed_s > 3.9, {"speed-up of a 1 MB all-reduce, 256 ranks": plain_s / packed_s})


def _gradient_of_gpt3() -> Witness:
    seconds = all_reduce_bytes(message_bytes=700e9, num_ranks=1024).value / 100e9
    return Witness(0.1 <= seconds < 0.2, {"seconds for 700 GB at 100 GB/s": seconds})


def _parameter_server_hub() -> Witness:
    workers, num_bytes = 1000, 4e9
    seconds = 2 * workers * num_bytes / 100e9
    return Witness(abs(seconds - 80) < 1, {"seconds, each way 4 TB at 100 GB/s": seconds})


def _local_sgd_is_asynchrony() -> Witness:
    step, period = 0.1, 50
    local = (1 - step) ** period  # all workers alike: as one
    stale = spectral_radius(step=step, staleness=period) ** period
    return Witness((local < 1) == (stale < 1), {"error after 50 local steps": local, "with a staleness of 50": stale})


def _asynchronous_speed_is_the_mean() -> Witness:
    times_s = (1.0, 1.0, 1.0, 5.0)
    rate = asynchronous_rate(step_times_s=times_s).value
    mean = len(times_s) / (sum(times_s) / len(times_s))
    return Witness(abs(rate / mean - 1) < 0.01, {"updates a second": rate, "n over the mean step time": mean})


def _young_for_three_days() -> Witness:
    times = {"checkpoint_s": 600.0, "mtbf_s": 259_200.0}
    young_h, best_h = young_interval_s(**times) / 3600, best_interval_s(**times) / 3600
    return Witness(abs(young_h - 5) < 0.25, {"Young's interval (h)": young_h, "exact (h)": best_h})
