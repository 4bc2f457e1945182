"""A small sweep of the quadratic task in the virtual world: folders, resuming, targets, networks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.kept_progress import KeptProgress
from plesio.bench.plan import describe_network, plan_sweep, run_plan
from plesio.bench.recipe import Recipe, make_recipe
from plesio.core.errors import ConfigError, DataError
from plesio.core.results import RunResult, read_results
from plesio.cost.cluster import Cluster, parse_cluster

BANDWIDTHS = ("1 Mbit/s", "1 Gbit/s")


def a_recipe(
    *, count: int = 3, cluster: Cluster | str | None = "4x1gbe", batch_size: int = 16, **run: object
) -> Recipe:
    data = {
        "task": {"name": "quadratic", "batch_size": batch_size, "options": {"dimension": 8, "num_samples": 256}},
        "run": {"policies": ["ssp:0", "ssp:inf"], "samples": 768, "evaluate_every": 96, "target": 20.0, **run},
        "workers": {"count": count, "step_time": {"kind": "constant", "mean": "1 ms"}},
    }
    if cluster is not None:
        data["workers"]["cluster"] = cluster
    return make_recipe(data, folder=Path(), where="test")


def sweep(
    recipe: Recipe, out: Path, *, bandwidths: tuple[str, ...] = BANDWIDTHS, resume: bool = False
) -> tuple[dict[str, list[RunResult]], KeptProgress]:
    kept = KeptProgress()
    out.mkdir(exist_ok=True)
    plan = plan_sweep(recipe, bandwidths=bandwidths, resume=resume)
    done = run_plan(plan, out=out, resume=resume, progress=kept)
    return {str(combination.link): runs for combination, runs in done.items()}, kept


def test_a_sweep_is_a_comparison_per_bandwidth_and_more_bandwidth_is_faster(tmp_path: Path):
    swept, kept = sweep(a_recipe(), tmp_path)
    assert list(swept) == list(BANDWIDTHS)
    for bandwidth, folder in (("1 Mbit/s", "1-Mbit-s"), ("1 Gbit/s", "1-Gbit-s")):
        assert read_results(tmp_path / folder / "results.json") == swept[bandwidth]
        assert (tmp_path / folder / "runs" / "ssp-0-seed0" / "trace-0.jsonl").exists()
        assert [run.policy for run in swept[bandwidth]] == ["ssp:0", "ssp:inf"]
        assert {run.status for run in swept[bandwidth]} == {"finished"}
    for narrow, wide in zip(*swept.values(), strict=True):
        assert narrow.samples_per_s < 0.7 * wide.samples_per_s
    assert kept.calls[:2] == [("started", "ssp:0 at 1 Mbit/s"), ("finished", "ssp:0 at 1 Mbit/s")]
    assert kept.calls[-2:] == [("started", "ssp:inf at 1 Gbit/s"), ("finished", "ssp:inf at 1 Gbit/s")]


def test_a_resumed_sweep_keeps_what_it_has_and_times_it_to_todays_target(tmp_path: Path):
    first, _ = sweep(a_recipe(policies=["ssp:0"]), tmp_path)
    swept, kept = sweep(a_recipe(target=15.0), tmp_path, resume=True)
    assert kept.labels == [
        ("kept", "ssp:0 at 1 Mbit/s", 1, 4),
        ("started", "ssp:inf at 1 Mbit/s", 2, 4),
        ("kept", "ssp:0 at 1 Gbit/s", 3, 4),
        ("started", "ssp:inf at 1 Gbit/s", 4, 4),
    ]
    anew, _ = sweep(a_recipe(target=15.0), tmp_path / "anew")
    for bandwidth in BANDWIDTHS:
        before, after = first[bandwidth][0], swept[bandwidth][0]
        assert before.time_to_target_s is not None
        assert after.time_to_target_s is not None
        assert before.time_to_target_s < after.time_to_target_s
        for run, again in zip(swept[bandwidth], anew[bandwidth], strict=True):
            assert (run.target, run.time_to_target_s) == (15.0, again.time_to_target_s)
        assert read_results(tmp_path / bandwidth.replace(" ", "-").replace("/", "-") / "results.json")[0] == after


@pytest.mark.parametrize("other", [a_recipe(cluster="16x1gbe"), a_recipe(batch_size=8), a_recipe(samples=96)])
def test_runs_of_other_settings_are_not_mixed(tmp_path: Path, other: Recipe):
    sweep(a_recipe(), tmp_path, bandwidths=BANDWIDTHS[:1])
    with pytest.raises(DataError, match=r"other settings \((task.batch_size|run.samples|workers.cluster)\)"):
        sweep(other, tmp_path, resume=True)


def test_a_garbled_setting_is_named(tmp_path: Path):
    sweep(a_recipe(), tmp_path, bandwidths=BANDWIDTHS[:1])
    [folder] = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "setting.json").write_text("{")
    with pytest.raises(DataError, match=r"setting.json is garbled"):
        sweep(a_recipe(), tmp_path, resume=True)


def test_a_failed_run_is_among_the_results(tmp_path: Path):
    recipe = a_recipe(policies=["bsp"], elastic=False)
    lost = recipe.workers.model_copy(
        update={
            "faults": make_recipe(
                {
                    "task": {"name": "quadratic"},
                    "run": {"policies": ["bsp"], "samples": 1},
                    "workers": {"count": 3, "faults": [{"at": "5 ms", "kind": "lose", "worker": 1}]},
                },
                folder=Path(),
                where="test",
            ).workers.faults
        }
    )
    swept, kept = sweep(recipe.model_copy(update={"workers": lost}), tmp_path, bandwidths=BANDWIDTHS[1:])
    assert [run.status for run in swept["1 Gbit/s"]] == ["failed"]
    assert kept.calls[-1] == ("failed", "bsp at 1 Gbit/s")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: a_recipe(cluster=None), r"one host has no network .* add --cluster 4x1gbe"),
        (lambda: a_recipe(cluster="laptop", count=2), r"the 2 workers fill one host of cluster laptop"),
        (lambda: a_recipe(cluster="16x8h100", count=8), r"fill one host of .* --cluster 16x1gbe"),
        (lambda: a_recipe(target=None), r"quadratic has no target.* --target X, a value of suboptimality \(less is"),
    ],
)
def test_what_a_sweep_cannot_be_made_of(make: Callable[[], Recipe], message: str):
    with pytest.raises(ConfigError, match=message) as raised:
        plan_sweep(make(), bandwidths=BANDWIDTHS)
    assert "\n" not in str(raised.value)


def test_uplinks_stay_as_oversubscribed_as_they_were():
    racks = parse_cluster("2-racks")
    assert racks.uplink is not None
    narrow = racks.with_bandwidth(racks.nic.bytes_per_s / 10)
    assert narrow.nic == replace(racks.nic, bytes_per_s=1.25e8)
    assert narrow.uplink == replace(racks.uplink, bytes_per_s=racks.uplink.bytes_per_s / 10)
    assert describe_network(narrow) == describe_network(racks)
    flat = parse_cluster("4x1gbe")
    assert flat.with_bandwidth(1e6) == replace(flat, nic=replace(flat.nic, bytes_per_s=1e6))
    assert describe_network(flat) == "cluster 4x1gbe"
