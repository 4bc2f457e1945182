"""A characterisation's figures, tables and words, of made-up runs; and the page in a real browser."""

import csv
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from plesio.core.combination import Combination, Part
from plesio.core.errors import DataError
from plesio.core.results import Evaluation, MemorySplit, RunResult, WorkerTimes
from plesio.report.characterisation import (
    Characterisation,
    Claim,
    accuracy_chart,
    characterisation_sentences,
    claims_tables,
    factor_charts,
    overloads,
    paper_charts,
    paper_tables,
    pareto_chart,
    regained,
    scaling_table,
    speed_up_chart,
    summarise_characterisation,
    write_characterisation,
)
from support.browser import check_figures, load, opened

POLICIES = ("bsp", "fsdp", "bsp,exchange=store", "asp,rate=undivided", "asp")
TIME_S = {"bsp": 8.0, "fsdp": 24.0, "bsp,exchange=store": 9.0, "asp,rate=undivided": 7.0, "asp": 7.1}
ACCURACY = {"bsp": 0.95, "fsdp": 0.95, "bsp,exchange=store": 0.95, "asp,rate=undivided": 0.40, "asp": 0.94}
STATE = {"bsp": 12_000_000, "fsdp": 3_000_000}


def a_run(policy: str, seed: int, *, workers: int, world: str = "process", slow: float = 1.0) -> RunResult:
    time_s = slow * TIME_S[policy] / workers * (1 + 0.01 * (seed - 1) * (1 + POLICIES.index(policy)))
    accuracy = ACCURACY[policy] + 0.003 * (seed - 1)
    parts = STATE.get(policy, 9_000_000) // (1 if workers == 4 or policy != "fsdp" else 2)
    memory = MemorySplit(
        device="cpu",
        peak_bytes=300_000_000,
        before_bytes=250_000_000,
        parameters_bytes=parts // 3,
        gradients_bytes=parts // 3,
        optimizer_bytes=parts // 3,
        activations_bytes=5_000_000,
        other_bytes=1_000_000,
        cached_bytes=2_000_000,
    )
    times = [
        WorkerTimes(
            worker=rank,
            compute_s=0.7 * time_s,
            wait_s=0.2 * time_s,
            communicate_s=0.1 * time_s,
            steps=100 // workers,
            samples=1600 // workers,
            peak_memory_bytes=300_000_000,
            memory=memory,
        )
        for rank in range(workers)
    ]
    return RunResult(
        policy=policy,
        task="vision",
        world=world,  # type: ignore[arg-type]
        seed=seed,
        num_workers=workers,
        status="finished",
        steps=100,
        samples=1600,
        wall_s=time_s,
        metric_name="accuracy",
        final_metric=accuracy,
        target=0.9,
        bytes_sent_total=1_000_000 * (POLICIES.index(policy) + 1),
        workers=tuple(times),
        evaluations=tuple(Evaluation(samples=800 * k, at_s=time_s * k / 2, metric=accuracy * k / 2) for k in (1, 2)),
    )


def a_characterisation(
    seeds: Sequence[int] = (0, 1, 2), policies: Sequence[str] = POLICIES, models: Sequence[str] = ("vgg", "convnext")
) -> Characterisation:
    scaling = [Combination(world="process", model=model, workers=workers) for model in models for workers in (1, 2, 4)]
    links = [Combination(world="virtual", model="vgg", workers=4, link=link) for link in ("100 Mbit/s", "1 Gbit/s")]
    parts = [
        Part(name="scaling", policies=policies, levels={"model": models, "workers": (1, 2, 4)}, combinations=scaling),
        Part(name="link", policies=policies, levels={"link": ("100 Mbit/s", "1 Gbit/s")}, combinations=links),
    ]
    runs = {
        one: [
            a_run(policy, seed, workers=one.workers, world=one.world, slow=3.0 if one.link == "100 Mbit/s" else 1.0)
            for policy in policies
            for seed in seeds
        ]
        for one in (*scaling, *links)
    }
    return summarise_characterisation(parts, runs)


def test_ours_stand_beside_theirs():
    tables = paper_tables(a_characterisation())
    assert list(tables) == ["3", "4", "5", "6", "7", "8"]
    rows = {tuple(row[:2]): row[2:] for row in tables["3"].rows}
    assert rows["DDP", "vgg (VGG16)"] == ["8.00 ± 0.08", "4.00 ± 0.04", "2.00 ± 0.02", "487.55", "230.74", "113.81"]
    assert rows["ratio", "vgg (VGG16)"] == ["3.00x", "3.00x", "3.00x", "2.17x", "2.12x", "2.46x"]
    assert rows["DDP", "efficientnet (EfficientNet_v2)"][:3] == ["–", "–", "–"]
    accuracy = {tuple(row[:2]): row[2:] for row in tables["4"].rows}
    assert accuracy["Asynchronous", "vgg (VGG16)"] == ["40.0 ± 0.3", "40.0 ± 0.3", "40.0 ± 0.3", "83.2", "78.2", "42.4"]
    modified = {tuple(row[:2]): row[2:] for row in tables["6"].rows}
    assert modified["Modified async", "vgg (VGG16)"][3:] == ["> 3000", "> 3000", "417.22"]
    gains = {row[0]: row[1:] for row in tables["7"].rows}
    assert gains["vgg (VGG16)"] == [
        "40.0 ± 0.3",
        "94.0 ± 0.3",
        "+54.0",
        "p < 0.001",
        "won back",
        "42.4",
        "46.8",
        "+4.4",
    ]
    decisions = {row[0]: row[1:] for row in tables["8"].rows}
    assert decisions["Memory usage: ours"][:2] == ["1.00x DDP's state", "0.25x DDP's state"]
    assert decisions["Scalability: ours"][0] == "efficiency 100 % at 4"


def test_speed_up_and_efficiency_are_against_one_worker_under_the_same_policy():
    rows = {tuple(row[:3]): row for row in scaling_table(a_characterisation()).rows}
    assert "4.00x (100 %)" in rows["vgg", "fsdp", "4"]
    assert len(rows) == 2 * 3 * len(POLICIES), "what is varied besides model and workers is not among them"


def test_a_claim_needs_a_small_p_after_all_of_its_family_is_counted():
    found = a_characterisation()
    claims = {(claim.combination, claim.policy): claim for claim in found.claims}
    vgg = Combination(world="process", model="vgg", workers=4)
    slow = claims[vgg, "fsdp"].speed
    assert slow is not None
    assert slow.value == pytest.approx(1 / 3, rel=1e-3)
    assert slow.p_value is not None
    assert slow.p_adjusted is not None
    assert slow.p_value < slow.p_adjusted < 0.05
    same = claims[vgg, "fsdp"].metric
    assert same is not None
    assert not same.shown
    rows = {tuple(row[:2]): row for row in claims_tables(found)["speed"].rows}
    assert rows["vgg, 4 workers", "fsdp"][-1] == "slower"
    rows = {tuple(row[:2]): row for row in claims_tables(found)["metric"].rows}
    assert rows["vgg, 4 workers", "fsdp"][-1] == "not tested: the same steps by construction"
    assert rows["vgg, 4 workers", "asp"][-1] == "worse"
    sentences = " ".join(characterisation_sentences(found))
    assert "3 seeds a policy, which is few" in sentences
    assert "show no difference, which is not to say that there is none" in sentences


def test_the_same_steps_by_construction_are_not_of_the_family():
    found = a_characterisation()
    same = {(one.combination.workers, one.policy) for one in found.claims if one.same_steps}
    alone = {(1, policy) for policy in POLICIES[1:]}
    assert same == alone | {(number, policy) for number in (2, 4) for policy in ("fsdp", "bsp,exchange=store")}
    others = [one for one in found.claims if not one.same_steps]
    assert len(others) == 2 * (2 * 2) + 2 * 2, "of two models with 2 and 4 workers, and of two links"
    for claim in found.claims:
        assert claim.speed is not None
        assert claim.speed.p_adjusted is not None
        for one in (claim.metric, claim.spread):
            assert one is not None
            assert (one.p_value is None) == claim.same_steps
    spread = next(one.spread for one in others if one.spread is not None)
    assert spread.p_value is not None
    assert spread.p_adjusted == pytest.approx(min(1.0, len(others) * spread.p_value))
    assert f"{len(same_claims(found))} of {len(found.claims)} comparisons" in " ".join(
        characterisation_sentences(found)
    )


def same_claims(found: Characterisation) -> list[Claim]:
    return [one for one in found.claims if one.same_steps]


def test_equal_parameters_are_the_same_steps_whatever_the_policies_are_called():
    found = a_characterisation()
    link = Combination(world="virtual", model="vgg", workers=4, link="1 Gbit/s")
    runs = {one: list(comparison.runs) for one, comparison in found.settings.items()}
    for digests in ((0, 0), (0, 1)):  # another seed's parameters may differ
        runs[link] = [
            dataclasses.replace(run, parameters_sha256=f"{run.seed * (digests[1] if run.policy == 'asp' else 0)}")
            for run in runs[link]
            if run.policy in ("bsp", "asp")
        ]
        [claim] = [one for one in summarise_characterisation(found.parts[:1], runs).claims if one.combination == link]
        assert claim.same_steps == (digests == (0, 0))


def test_what_the_modified_server_wins_back_has_a_test_for_each_model():
    gains = regained(a_characterisation())
    assert list(gains) == ["vgg", "convnext"]
    for one in gains.values():
        assert one.value == pytest.approx(0.54)
        assert one.p_value is not None
        assert one.p_adjusted == pytest.approx(min(1.0, 2 * one.p_value))
    said = " ".join(characterisation_sentences(a_characterisation()))
    assert "accuracy is won back in 2 of 2 models, vgg +54.0 points (p < 0.001) and convnext +54.0 points" in said
    assert not regained(a_characterisation(policies=("bsp", "asp")))


def test_two_seeds_claim_nothing():
    found = a_characterisation(seeds=(0, 1))
    for table in claims_tables(found).values():
        assert {row[-1] for row in table.rows} == {"not tested: 2 seeds"}
    assert characterisation_sentences(found)[0].startswith("2 seeds a policy: too few for any claim")
    assert len(characterisation_sentences(found)) == 1


def test_strategies_that_were_not_run_leave_a_dash():
    found = a_characterisation(policies=("bsp", "asp"), models=("mlp",))
    rows = {tuple(row[:2]): row for row in paper_tables(found)["3"].rows}
    assert rows["FSDP", "vgg (VGG16)"][2:5] == ["–", "–", "–"]
    assert rows["DDP", "mlp"][5:] == ["–", "–", "–"]
    assert not paper_charts(found), "there is nothing to compare with"


def test_a_machine_that_is_too_small_is_named():
    found = a_characterisation()
    assert not list(overloads(found))
    vgg = Combination(world="process", model="vgg", workers=4)
    runs = {one: comparison.runs for one, comparison in found.settings.items()}
    runs[vgg] = tuple(
        dataclasses.replace(
            run, workers=tuple(dataclasses.replace(worker, compute_s=2 * worker.compute_s) for worker in run.workers)
        )
        for run in runs[vgg]
    )
    busy = summarise_characterisation(found.parts, runs)
    [(combination, policy, ratio)] = overloads(busy)
    assert (combination, policy, ratio) == (vgg, "bsp", pytest.approx(2.0))
    assert "too small or too busy" in characterisation_sentences(busy)[-1]


def test_no_runs_are_an_error():
    with pytest.raises(DataError, match="plesio lab characterise"):
        summarise_characterisation([], {})


@pytest.mark.parametrize("make", [speed_up_chart, accuracy_chart, pareto_chart])
def test_charts_have_a_panel_a_model(make: Callable[[Characterisation], object]):
    chart = make(a_characterisation())
    assert [panel.title.partition(",")[0] for panel in chart.charts] == ["vgg", "convnext"]  # type: ignore[attr-defined]


def test_a_factors_chart_says_who_depends_most_on_it():
    [chart] = factor_charts(a_characterisation())
    assert chart.title.startswith("Over link, throughput varies by 3.00x under")
    assert [list(panel.x.ticks.values()) for panel in chart.charts] == [["100 Mbit/s", "1 Gbit/s"]] * 2  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, with its tables and pictures beside it."""
    return write_characterisation(a_characterisation(), tmp_path_factory.mktemp("characterisation"))


def test_page_tables_and_pictures_are_written(written: Path):
    folder = written.parent
    assert written.name == "report.html"
    names = sorted(path.stem for path in (folder / "tables").iterdir())
    assert names == [
        "claims-metric",
        "claims-speed",
        "claims-spread",
        "design",
        "scaling",
        *(f"table-{number}" for number in range(3, 9)),
    ]
    with (folder / "tables" / "table-3.csv").open(newline="") as file:
        assert next(csv.reader(file))[:3] == ["strategy", "model", "ours, 1"]
    assert {"figure-10", "figure-15", "figure-20", "figure-21", "pareto"} <= {
        path.stem for path in (folder / "figures").iterdir()
    }
    claims = json.loads((folder / "characterise.json").read_text())["claims"]
    assert claims[0]["speed"]["shown"] in (True, False)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_drawn_with_room_for_every_label(browser: Browser, written: Path, width: int):
    with opened(browser, width=width) as page:
        load(page, written)
        check_figures(page, width=width)
