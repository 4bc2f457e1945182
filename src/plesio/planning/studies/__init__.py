"""System models, each a question with a typed answer: ``plesio.planning.studies.stragglers(num_workers=64)``.

`STUDIES` lists them; `docs/studies` explains each: the model, its assumptions and sources, and where it stops being
true. A study's module, in `plesio.planning.studies.models`, is imported when the study is first asked for.
"""

from typing import TYPE_CHECKING, Any

from plesio.planning.studies.catalogue import STUDIES, Study, find_study
from plesio.planning.studies.study import Answer, Asked

if TYPE_CHECKING:
    from plesio.planning.studies.models.batch_scaling import batch_scaling
    from plesio.planning.studies.models.bounded_staleness import bounded_staleness
    from plesio.planning.studies.models.checkpointing import checkpointing
    from plesio.planning.studies.models.collectives import collectives
    from plesio.planning.studies.models.compression import compression
    from plesio.planning.studies.models.consistency import consistency
    from plesio.planning.studies.models.data_parallel import data_parallel
    from plesio.planning.studies.models.determinism import determinism
    from plesio.planning.studies.models.goodput import goodput
    from plesio.planning.studies.models.hierarchical import hierarchical
    from plesio.planning.studies.models.load_balancing import load_balancing
    from plesio.planning.studies.models.local_sgd import local_sgd
    from plesio.planning.studies.models.loss_scaling import loss_scaling
    from plesio.planning.studies.models.mixture_of_experts import mixture_of_experts
    from plesio.planning.studies.models.overlap import overlap
    from plesio.planning.studies.models.parameter_server import parameter_server
    from plesio.planning.studies.models.pipeline import pipeline
    from plesio.planning.studies.models.staleness_weighting import staleness_weighting
    from plesio.planning.studies.models.stragglers import stragglers
    from plesio.planning.studies.models.tensor_parallel import tensor_parallel
    from plesio.planning.studies.models.time_to_train import time_to_train

__all__ = [
    "STUDIES",
    "Answer",
    "Asked",
    "Study",
    "batch_scaling",
    "bounded_staleness",
    "checkpointing",
    "collectives",
    "compression",
    "consistency",
    "data_parallel",
    "determinism",
    "find_study",
    "goodput",
    "hierarchical",
    "load_balancing",
    "local_sgd",
    "loss_scaling",
    "mixture_of_experts",
    "overlap",
    "parameter_server",
    "pipeline",
    "staleness_weighting",
    "stragglers",
    "tensor_parallel",
    "time_to_train",
]


def __getattr__(name: str) -> Any:
    for study in STUDIES:
        if study.name.replace("-", "_") == name:
            return study.function
    raise AttributeError(f"module 'plesio.planning.studies' has no attribute '{name}'")
