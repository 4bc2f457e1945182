"""Answers of studies that tests share, each asked once."""

import functools
from typing import Any

from plesio_planning.studies import Asked, Study

QUICK: dict[str, dict[str, Any]] = {
    "batch-scaling": {
        "num_dimensions": 4,
        "batches": (16, 64, 256),
        "condition_number": 2.0,
        "max_steps": 200,
        "num_trials": 2,
    },
    "bounded-staleness": {"stalenesses": (0, 1), "condition_number": 2.0, "num_trials": 2, "num_dimensions": 2},
    "compression": {"num_dimensions": 20, "condition_number": 5.0, "schemes": ("none", "topk:0.5"), "max_steps": 2000},
    "checkpointing": {"num_runs": 4},
    "consistency": {"ratios": (1.0,), "cvs": (0.1,), "slowdowns": (1.0,), "num_workers": 2, "bounds": (1,)},
    "goodput": {"simulated_failures": 100},
    "determinism": {"num_tensors": 4, "num_elements": 100, "num_workers": 2, "global_batch": 4, "num_steps": 3},
    "load-balancing": {"num_workers": 4, "num_clusters": 50, "num_steps": 40},
    "local-sgd": {
        "periods": (1, 2),
        "num_workers": 2,
        "num_dimensions": 2,
        "num_trials": 2,
        "num_draws": 1,
        "ratios": (1.0,),
    },
    "loss-scaling": {"num_steps": 60, "num_elements": 30, "initial_scale": 2.0**28, "growth_interval": 5},
    "mixture-of-experts": {"num_experts": 8, "num_devices": 4, "tokens_per_device": 64, "num_trials": 2},
    "overlap": {"num_layers": 6},
    "pipeline": {"pp": 2, "num_micro_batches": 2},
    "staleness-weighting": {"max_staleness": 2, "condition_number": 4.0, "num_dimensions": 2, "num_trials": 2},
    "stragglers": {"num_steps": 50},
    "time-to-train": {"num_runs": 50},
}
"""Inputs that are smaller than the defaults, so that a question is asked in milliseconds."""


@functools.cache
def asked_quickly(study: Study) -> Asked:
    """Return the answer to smaller inputs; a test that reads it does not change it, for it is frozen."""
    return study.ask(**QUICK.get(study.name, {}))


@functools.cache
def asked_once(study: Study) -> Asked:
    """Return the answer to the study's own inputs."""
    return study.ask()
