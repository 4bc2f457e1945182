"""Odd values of every input of every study: one clear line that names the input, or an answer that holds together."""

import ast
import json
import math
import re
from typing import Any

import pytest

from asked import QUICK
from plesio.cli.commands import invoke
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import Input
from plesio.core.within import ANY
from plesio_planning.studies import STUDIES, Study, find_study, nonconvex_local_steps

NUMBERS = ("number", "bandwidth", "size", "duration", "count")
LARGE = 10**9


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that studies really do are shorter than what is asked with has a say in."""
    monkeypatch.setattr(nonconvex_local_steps, "_LONG", 200)
    monkeypatch.setattr(nonconvex_local_steps, "_STEPS", 64)


def odd_values(one: Input) -> list[Any]:
    """Return odd values for a number or a list: 0, 1, below 0, huge, none, duplicates, no number; and the ends of its
    range.
    """
    if one.kind == "whole number":
        odd: list[Any] = [0, 1, -1, LARGE, 10**400]
        ends = [int(each) for each in (one.within.low, one.within.high) if each in (0, 1, 2)]
    elif one.kind in NUMBERS:
        odd = [0.0, 1.0, -1.0, 1e300, 1e-300, math.nan, -math.inf]
        ends = [each for each in (one.within.low, one.within.high) if abs(each) <= 2]
    else:
        return [] if not one.many else [(), ("nonsense",), (*one.default, *one.default)]
    values = [*odd, *(each for each in ends if each not in odd)]
    if not one.many:
        return values
    return [(), *((value,) for value in values), (*one.default, *one.default)]


def faults(study: Study, one: Input, value: Any) -> str:
    """Describe the faults of the study's answer; empty if there are none."""
    try:
        asked = study.ask(**{**QUICK.get(study.name, {}), one.name: value})
    except ConfigError as error:
        said = str(error)
        if "\n" in said or len(said) > 400:
            return f"is refused on more than a line: {said}"
        return "" if names(one, error) else f"is refused without its name: {said}"
    answer = asked.answer
    parts = answer.parts
    if not all(map(math.isfinite, (*parts.values(), answer.total))):
        return f"has no finite answer: {dict(parts)}"
    if math.fsum(parts.values()) != pytest.approx(answer.total, rel=1e-9):
        return f"has parts that do not add up: {dict(parts)}, {answer.total}"
    if not (answer.tables() and answer.charts()):
        return "has nothing to show"
    json.dumps(asked.to_json(), allow_nan=False)
    return "" if not re.search(r"\bnan\b", answer.finding) else f"is answered by {answer.finding}"


def names(one: Input, error: ConfigError) -> bool:
    """Return True if an error is about the parameter, and names its option on the command line."""
    if not isinstance(error, ArgumentError):
        return False
    if str(error).startswith("failures are "):  # of a run that would hardly ever end
        return bool({"cluster_mtbf_s", "device_mtbf_s"} & set(error.parameters))
    return one.name in error.parameters and one.option in error.worded({one.name: one.option})


LONG = ("consistency", "local-sgd", "loss-scaling", "mixture-of-experts", "staleness-weighting", "stragglers")
"""Studies that take more than a second."""


@pytest.mark.parametrize(
    "study",
    [pytest.param(one, marks=[pytest.mark.slow] * (one.name in LONG)) for one in STUDIES],
    ids=lambda each: each.name,
)
def test_odd_values_are_refused_by_name_or_answered(study: Study):
    found = [
        f"{study.name} {one.name}={str(value)[:60]} {fault}"
        for one in study.inputs()
        for value in odd_values(one)
        if (fault := faults(study, one, value))
    ]
    assert not found, "\n".join(found)


def test_every_study_says_which_numbers_it_may_be_asked_with():
    assert not [
        study.name for study in STUDIES if all(one.within == ANY for one in study.inputs() if one.name != "seed")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["collectives", "--ranks", "1"], "--ranks is 1; write 2 to 1048576"),
        (["collectives", "--other-ranks", "1"], "--other-ranks is 1; write 2 to 1048576"),
        (["consistency", "--workers", "1"], "--workers is 1; write 2 to 64"),
        (["stragglers", "--stage-weights", ""], "--stage-weights has 0 values; write 1 or more"),
        (["overlap", "--gradient", "0 B"], "--gradient is 0; write 1 to"),
        (["determinism", "--batch", "9"], "--batch is 9, no multiple of the 8 of --workers; write a --batch of 8"),
        (["hierarchical", "--nics-per-host", "9"], "write 1 to 8 for --nics-per-host"),
        (["stragglers", "--cv", "nan"], "--cv is nan; write a finite number"),
        (["time-to-train", "--confidence", "90"], "--confidence is 90; write more than 0, less than 1"),
    ],
)
def test_the_command_line_is_told_of_its_options(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str):
    assert invoke(["study", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("collectives", {"num_ranks": 2.5}, "num_ranks is 2.5; write a whole number"),
        ("collectives", {"other_ranks": 8}, "other_ranks is 8; write several, as in "),
        ("stragglers", {"distribution": "gama"}, 'distribution is "gama"; did you mean "gamma"'),
        ("stragglers", {"num_workers": "many"}, "num_workers is 'many'; write a whole number"),
        ("stragglers", {"compute_s": None}, "compute_s is None; write a number"),
    ],
)
def test_what_is_no_number_or_no_choice_is_refused(name: str, inputs: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as refused:
        find_study(name).ask(**inputs)
    assert said in str(refused.value)


IMPOSSIBLE = {
    "batch-scaling": "batches=(8, 8); noise_scale=0.0; target=1.0; walls=-1.0; max_steps=5; global_batch=0",
    "bounded-staleness": "stalenesses=(-1,); condition_number=0.5; target=0.0; tiny_step=2.0; num_trials=0",
    "checkpointing": (
        "checkpoint_s=0.0; cluster_mtbf_s=0.0; restart_s=-1.0; checkpoint_interval_s=0.0; "
        "checkpoint_interval_s=1000000000.0; work_s=0.0; num_writers=0; changed_share=1.5; unreadable=1.0; "
        "shape=0.0; num_runs=1; host_mtbf_s=0.0"
    ),
    "collectives": (
        'num_ranks=1; other_ranks=(1,); ranks_per_host=0; bytes_per_s=0.0; algorithms=("hierarchical",); '
        "message_bytes=-1.0"
    ),
    "compression": (
        'schemes=("powersgd:2",); schemes=("topk:0.1@9",); schemes=("levels:0",); schemes=("sign:3",); '
        "target=0.0; num_dimensions=1; max_steps=10; num_workers=1, compute_s=0.0"
    ),
    "consistency": "ratio=-1.0; slowdown=0.5; overlap=2.0; num_workers=1; bounds=(0,); periods=(1,); target=1e-09",
    "data-parallel": "overlap=1.5; forward_s=-1.0; num_workers=0; bytes_per_s=0.0",
    "determinism": 'first="a.npz"; num_tensors=1; global_batch=65; tolerance=-1.0; num_steps=0',
    "hierarchical": (
        "num_hosts=1; ranks_per_host=0; nics_per_host=9; nics_per_host=0; bytes_per_s=0.0; local_latency_s=-1.0"
    ),
    "load-balancing": "low=0.0; cap=31; num_workers=1; cv=-1.0; num_steps=0; rebalance_every=0",
    "local-sgd": (
        "periods=(0,); compute_s=0.0; num_workers=0; hessian_spread=1.0; floor_step=0.9; noise=-1.0; target=1e-09"
    ),
    "loss-scaling": "standard_deviation=0.0; initial_scale=0.0; growth_interval=0; num_steps=0",
    "mixture-of-experts": (
        "num_experts=0; num_experts=63; num_devices=1; tokens_per_device=0; experts_per_token=64; skew=-1.0; "
        "capacity_factor=0.0; num_trials=1; bytes_per_s=0.0"
    ),
    "overlap": "num_layers=0; backward_s=0.0; gradient_bytes=0.0; bytes_per_s=0.0; latency_s=-1",
    "parameter-server": (
        "num_workers=1; num_servers=0; density=0.0; density=1.5; index_share=-1.0; barrier_factor=0.5; "
        "compute_s=0.0; bytes_per_s=0.0"
    ),
    "pipeline": (
        'pp=0; num_micro_batches=0; schedule="interleaved", num_micro_batches=30; '
        'schedule="zbv", num_micro_batches=8; target_bubble=0.0; forward_s=-1.0; stage_weights=(1.0, 2.0); '
        'num_layers=4; num_layers=50; schedule="zbv", num_layers=88, num_micro_batches=32; hidden_size=0'
    ),
    "staleness-weighting": "max_staleness=-1; target=2.0; num_trials=0; shares=(0.0,); condition_number=0.0",
    "stragglers": (
        'num_workers=0; cv=0.0; compute_s=0.0; distribution="pareto", shape=1.0; '
        'distribution="uniform", cv=0.6; distribution="trace"; slowdown=0.5; stage_weights=(); '
        "exchange_s=-1.0"
    ),
    "tensor-parallel": (
        "tp=0; devices_per_host=0; device_tflops=0.0; num_layers=0; local_bytes_per_s=0.0; hidden_size=0; "
        "local_latency_s=-1.0"
    ),
}
"""Inputs that are refused, case by case; the test above would also take an answer that holds together."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_inputs_are_refused(name: str):
    for case in IMPOSSIBLE[name].split("; "):
        call = ast.parse(f"ask({case})", mode="eval").body
        assert isinstance(call, ast.Call)
        inputs = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        with pytest.raises(ConfigError, match="write"):
            find_study(name).ask(**inputs)


@pytest.mark.parametrize(
    ("name", "inputs", "one"),
    [
        ("data-parallel", {"num_workers": 1}, "1 worker "),
        ("stragglers", {"num_workers": 1, "num_steps": 50}, "1 worker "),
        ("tensor-parallel", {"tp": 1}, "1 device,"),
        ("hierarchical", {"ranks_per_host": 1, "nics_per_host": 1}, "1 rank and 1 NIC,"),
        ("determinism", {"num_steps": 1, "num_elements": 10}, "after 1 step "),
    ],
)
def test_one_of_a_thing_is_written_so(name: str, inputs: dict[str, Any], one: str):
    assert one in find_study(name).ask(**inputs).answer.finding
