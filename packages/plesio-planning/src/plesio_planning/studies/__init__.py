"""System models, each a question with a typed answer: ``plesio_planning.studies.stragglers(num_workers=64)``.

`STUDIES` lists them; `docs/planning/studies` explains each: the model, its assumptions and sources, and where it stops
being true. A study's module, in `plesio_planning.studies.models`, is imported when the study is first asked for.
"""

from typing import TYPE_CHECKING, Any

from plesio_planning.studies.catalogue import STUDIES, Study, find_study
from plesio_planning.studies.study import Answer, Asked

if TYPE_CHECKING:
    from plesio_planning.studies.models.batch_scaling import batch_scaling
    from plesio_planning.studies.models.bounded_staleness import bounded_staleness
    from plesio_planning.studies.models.checkpointing import checkpointing
    from plesio_planning.studies.models.collectives import collectives
    from plesio_planning.studies.models.compression import compression
    from plesio_planning.studies.models.consistency import consistency
    from plesio_planning.studies.models.data_parallel import data_parallel
    from plesio_planning.studies.models.determinism import determinism
    from plesio_planning.studies.models.goodput import goodput
    from plesio_planning.studies.models.hierarchical import hierarchical
    from plesio_planning.studies.models.load_balancing import load_balancing
    from plesio_planning.studies.models.local_sgd import local_sgd
    from plesio_planning.studies.models.loss_scaling import loss_scaling
    from plesio_planning.studies.models.mixture_of_experts import mixture_of_experts
    from plesio_planning.studies.models.overlap import overlap
    from plesio_planning.studies.models.parameter_server import parameter_server
    from plesio_planning.studies.models.pipeline import pipeline
    from plesio_planning.studies.models.staleness_weighting import staleness_weighting
    from plesio_planning.studies.models.stragglers import stragglers
    from plesio_planning.studies.models.tensor_parallel import tensor_parallel
    from plesio_planning.studies.models.time_to_train import time_to_train

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
    raise AttributeError(f"module 'plesio_planning.studies' has no attribute '{name}'")
