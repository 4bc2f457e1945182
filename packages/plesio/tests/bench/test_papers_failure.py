"""The draws for the table of undivided rates in docs/evidence.md, and a training of every kind of model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EVIDENCE = Path(__file__).parents[4] / "benchmarks" / "evidence"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other as siblings; what they are called is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(EVIDENCE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(EVIDENCE) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["dev", "report"])
def test_a_set_has_every_kind_of_model_and_every_spread_of_speeds(name: str):
    from paper_models import KINDS, SETS, SPREADS, draw

    models = [draw(seed) for seed in SETS[name]]
    assert [model.kind for model in models] == list(KINDS)
    assert {model.spread for model in models} == set(SPREADS)
    assert models == [draw(seed) for seed in SETS[name]]


def test_models_to_develop_on_and_to_report_are_drawn_apart():
    from paper_models import SETS

    assert not set(SETS["dev"]) & set(SETS["report"])


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 4, 5))])
def test_every_kind_trains_and_equal_runs_are_equal(seed: int):
    import papers_failure
    from paper_models import draw

    model = draw(seed)
    one, other = (papers_failure.run_trial(model, policy="modified_async", seed=3, num_steps=4) for _ in range(2))
    assert (one.points, one.time_s, one.staleness) == (other.points, other.time_s, other.staleness)
    assert one.time_s > 0
