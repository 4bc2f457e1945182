"""Check statements from the text's definitions and exercises: collectives, servers, pipelines, and failures."""

from plesio.cost.reliability import best_interval_s, young_interval_s
from plesio_planning.theory.communication import all_reduce_bytes, asynchronous_rate
from plesio_planning.theory.parallelism import pipeline_bubble
from plesio_planning.theory.stability import spectral_radius
from plesio_planning.theory.statements.statement import Witness


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
