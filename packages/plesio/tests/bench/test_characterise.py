"""Recipes of `plesio lab characterise`, what they cross, and a small one in the virtual world."""

from pathlib import Path

import pytest

from bench.kept_progress import KeptProgress
from plesio.bench.characterise_recipe import load_characterise_recipe, plan_of
from plesio.bench.plan import ComparisonPlan, check_plan, run_plan
from plesio.core.combination import Combination
from plesio.core.errors import ConfigError
from plesio.core.results import read_results
from plesio.cost.placement import all_reduce_on
from plesio.report.characterisation import summarise_characterisation

SHIPPED = Path(__file__).parents[4] / "recipes" / "characterise.toml"
RECIPE = """
run = { seeds = [0, 1], samples = 96, evaluate_every = 48 }

[workers]
count = 2
cluster = "4x1gbe"
step_time = { kind = "constant", mean = "1 ms" }

[models]
small = { name = "quadratic", options = { dimension = 8, num_samples = 256 } }
large = { name = "quadratic", options = { dimension = 32, num_samples = 256 }, step_time = LARGE }

[[parts]]
name = "scaling"
world = "virtual"
policies = ["bsp", "asp"]
model = ["small", "large"]
workers = [1, 2]

[[parts]]
name = "link"
world = "virtual"
policies = ["bsp", "ssp:2"]
link = ["10 Mbit/s", "1 Gbit/s"]
imbalance = [1.0, 0.5]

[[parts]]
name = "base"
world = "virtual"
policies = ["bsp", "local_sgd:4"]

[quick]
seeds = [3]
policies = ["bsp", "asp"]
model = ["small"]
link = ["1 Gbit/s"]
""".replace("LARGE", '{ kind = "constant", mean = "3 ms" }')


def num_runs(plan: ComparisonPlan) -> int:
    return sum(one.num_runs for one in plan.comparisons.values())


def a_plan(tmp_path: Path, text: str = RECIPE, *, quick: bool = False) -> ComparisonPlan:
    path = tmp_path / "characterise.toml"
    path.write_text(text)
    return plan_of(load_characterise_recipe(path), path, quick=quick)


def test_parts_are_crossed_and_a_combination_of_several_parts_is_one_comparison(tmp_path: Path):
    plan = a_plan(tmp_path)
    assert [len(part.combinations) for part in plan.parts] == [4, 4, 1]
    base = Combination(world="virtual", model="small", workers=2)
    assert plan.parts[2].combinations == [base]
    policies = plan.comparisons[base].recipe.run.policies
    assert policies == ("bsp", "asp", "ssp:2", "local_sgd:4"), "1 Gbit/s is the cluster's own"
    assert len(plan.comparisons) == 7
    assert num_runs(plan) == 2 * (4 + 3 * 2 + 3 * 2)
    assert plan.parts[1].along("link")["1 Gbit/s"] == base
    assert plan.parts[0].levels == {"model": ("small", "large"), "workers": (1, 2)}
    large = plan.comparisons[Combination(world="virtual", model="large", workers=1)].recipe
    assert large.task.options["dimension"] == 32
    assert large.workers.step_time is not None
    assert large.workers.step_time.distribution().mean_s == pytest.approx(0.003)
    slow = plan.comparisons[
        Combination(world="virtual", model="small", workers=2, link="10 Mbit/s", imbalance=0.5)
    ].recipe
    assert slow.workers.cluster is not None
    assert slow.workers.cluster.nic.bytes_per_s == 10e6 / 8
    assert [(one.rank, one.speed) for one in slow.workers.unequal] == [(1, 0.5)]
    assert len({combination.slug for combination in plan.comparisons}) == 7


def test_quick_keeps_what_its_table_lists(tmp_path: Path):
    plan = a_plan(tmp_path, quick=True)
    assert [(part.name, part.policies, len(part.combinations)) for part in plan.parts] == [
        ("scaling", ("bsp", "asp"), 2),
        ("link", ("bsp",), 2),
        ("base", ("bsp",), 1),
    ]
    assert {one.recipe.run.seeds for one in plan.comparisons.values()} == {(3,)}


def test_every_combination_has_a_folder_and_a_resumed_plan_keeps_what_is_there(tmp_path: Path):
    plan, out = a_plan(tmp_path, quick=True), tmp_path / "out"
    check_plan(plan)
    kept = KeptProgress()
    done = run_plan(plan, out=out, resume=False, progress=kept)
    assert kept.labels[0] == ("started", "bsp · small, 1 worker, virtual", 1, num_runs(plan))
    assert kept.labels[-1][2:] == (num_runs(plan), num_runs(plan))
    assert {how for how, _ in kept.calls} == {"started", "finished"}
    for combination, runs in done.items():
        assert read_results(out / combination.slug / "results.json") == runs
        assert {run.status for run in runs} == {"finished"}
    again = KeptProgress()
    assert run_plan(plan, out=out, resume=True, progress=again) == done
    assert {line[0] for line in again.labels} == {"kept"}
    found = summarise_characterisation(plan.parts, done)
    assert found.measured(model="small", workers=2) is not None
    assert found.num_seeds == (1, 1)
    assert all(claim.speed is not None and claim.speed.p_value is None for claim in found.claims)


def test_the_shipped_recipe_is_valid_and_has_each_table_of_the_source():
    recipe = load_characterise_recipe(SHIPPED)
    for quick in (False, True):
        plan = plan_of(recipe, SHIPPED, quick=quick)
        assert min(len(one.recipe.run.seeds) for one in plan.comparisons.values()) >= 3
    plan = plan_of(recipe, SHIPPED)
    plain = [
        one for one in plan.comparisons if one == Combination(world="process", model=one.model, workers=one.workers)
    ]
    by_model = {(one.model, one.workers): set(plan.comparisons[one].recipe.run.policies) for one in plain}
    for workers in (1, 2, 4):
        for model in ("vgg", "efficientnet", "convnext"):
            assert {"bsp", "fsdp"} <= by_model[model, workers]
        for model in ("vgg", "resnet", "densenet"):
            assert {"bsp,exchange=store", "asp,rate=undivided", "asp"} <= by_model[model, workers]


def test_the_topologies_of_the_shipped_recipe_bind():
    plan = plan_of(load_characterise_recipe(SHIPPED), SHIPPED)
    [part] = (part for part in plan.parts if part.name == "topology")
    flat, racks = (plan.comparisons[one].recipe.workers for one in part.combinations)
    assert flat.cluster is not None
    assert racks.cluster is not None
    times_s = [all_reduce_on(cluster, range(4), 1_050_376) for cluster in (flat.cluster, racks.cluster)]
    assert times_s[1] > 2 * times_s[0], "vgg's all-reduce, by a ring laid rack by rack"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model = ["small", "large"]', 'model = ["smal"]', r'no \[models.smal\]; did you mean "small"'),
        ('world = "virtual"\npolicies = ["bsp", "ssp:2"]', 'policies = ["bsp"]', "processes of one machine have no"),
        ('"bsp", "ssp:2"', '"sps:2"', 'did you mean "ssp"'),
        ('"10 Mbit/s"', '"10 Mbit"', "10 Mbit"),
        ("count = 2", 'count = "2"', "workers.count is '2'"),
        ("count = 2\n", "", "workers.count is None"),
        ('cluster = "4x1gbe"\n', "", "a link needs a cluster"),
        ("[quick]\n", "[quik]\n", 'unknown key "quik"; did you mean "quick"'),
        ("workers = [1, 2]", "workers = [0]", "write 1 or more"),
        ("workers = [1, 2]", "workers = [9]", "room for 4 workers"),
        ('policies = ["bsp", "local_sgd:4"]', "", 'part "base" has no policies'),
        (
            '{ name = "quadratic", options = { dimension = 8,',
            '{ name = "quadrtic", options = { dimension = 8,',
            "no task",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, message: str):
    assert old in RECIPE
    with pytest.raises(ConfigError, match=message) as raised:
        a_plan(tmp_path, RECIPE.replace(old, new))
    assert str(raised.value).count("\n") < 2


def test_quick_needs_its_table_and_must_leave_something(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"write a table \[quick\]"):
        a_plan(tmp_path, RECIPE.partition("[quick]")[0], quick=True)
    with pytest.raises(ConfigError, match="leaves nothing of any part"):
        a_plan(
            tmp_path,
            RECIPE.replace('policies = ["bsp", "asp"]\nmodel = ["small"]', 'policies = ["delayed:1"]'),
            quick=True,
        )


def test_the_virtual_world_must_know_how_long_steps_take(tmp_path: Path):
    text = RECIPE.replace('step_time = { kind = "constant", mean = "1 ms" }\n', "").replace(
        "imbalance = [1.0, 0.5]", ""
    )
    with pytest.raises(ConfigError, match="how long a step takes"):
        check_plan(a_plan(tmp_path, text))
