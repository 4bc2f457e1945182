"""All workers begin from rank 0's model, and a replica that becomes another one is found out."""

from pathlib import Path
from typing import Any

import pytest

from plesio.testing import Ending, LocalJob
from runtime.replica_programs import Backbone

pytestmark = pytest.mark.timeout(120)

PROGRAMS = Path(__file__).with_name("replica_programs.py")


def run(function: str, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(2) as job:
        return job.run(PROGRAMS, function, timeout_s=100, **arguments)


@pytest.mark.parametrize("policy", ["bsp", "asp", *(pytest.param(p, marks=pytest.mark.slow) for p in ("adaptive", "local_sgd:2", "hier:bsp/asp"))])
def test_what_no_step_moves_is_rank_0s_too(policy: str):
    model = Backbone(0)
    expected = [t.tolist() for t in (model.backbone.weight, model.backbone.bias, model.table, model.mask)]
    for ending in run("still", policy=policy).values():
        assert ending.error is None, ending.trace
        assert ending.value == {"begun": expected, "ended": (model.table + 1).tolist()}
