"""Twenty system models, each a question with a typed answer: ``plesio.studies.stragglers(num_workers=64)``.

`STUDIES` lists them; `docs/studies` explains each: the model, its assumptions and sources, and where it stops being
true. A study's module, in `plesio.studies.models`, is imported when the study is first asked for.
"""

from typing import TYPE_CHECKING, Any

from plesio.studies.catalogue import STUDIES, Study, find_study
from plesio.studies.study import Answer, Asked

if TYPE_CHECKING:
    from plesio.studies.models.batch_scaling import batch_scaling
    from plesio.studies.models.bounded_staleness import bounded_staleness
    from plesio.studies.models.checkpointing import checkpointing
    from plesio.studies.models.collectives import collectives
    from plesio.studies.models.compression import compression
    from plesio.studies.models.consistency import consistency
    from plesio.studies.models.data_parallel import data_parallel
    from plesio.studies.models.determinism import determinism
    from plesio.studies.models.hierarchical import hierarchical
    from plesio.studies.models.load_balancing import load_balancing
    from plesio.studies.models.local_sgd import local_sgd
    from plesio.studies.models.loss_scaling import loss_scaling
    from plesio.studies.models.mixture_of_experts import mixture_of_experts
    from plesio.studies.models.overlap import overlap
    from plesio.studies.models.parameter_server import parameter_server
    from plesio.studies.models.pipeline import pipeline
    from plesio.studies.models.staleness_weighting import staleness_weighting
    from plesio.studies.models.stragglers import stragglers
    from plesio.studies.models.tensor_parallel import tensor_parallel
    from plesio.studies.models.time_to_train import time_to_train

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
    raise AttributeError(f"module 'plesio.studies' has no attribute '{name}'")
