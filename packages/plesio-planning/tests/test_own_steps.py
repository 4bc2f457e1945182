"""Constants that are fitted to steps of one's own."""

from dataclasses import replace
from pathlib import Path

import pytest

from plesio.core.errors import ConfigError
from plesio.core.inputs import inputs_of
from plesio_planning.estimate import Training, calibrate_to, estimate_step, read_own_steps
from plesio_planning.estimate.estimate import Estimate, estimate
from refusals import refusal_of

ASKED = {"model": "llama-3-8b", "cluster": "64xh100", "tokens": 1e12, "tp": 2, "zero": 1}
WAYS = [{}, {"tp": 4, "pp": 2}, {"tp": 1, "zero": 3}, {"cluster": "512xh100"}]


def run_of(**given: object) -> Training:
    return estimate(**{**ASKED, **given}).training  # type: ignore[arg-type]


def test_constants_that_made_the_steps_are_found():
    asked = run_of()
    published = asked.constants
    theirs = replace(
        published,
        matrix_efficiency={**published.matrix_efficiency, "hopper": 0.85 * published.matrix_efficiency["hopper"]},
        network_efficiency=0.5 * published.network_efficiency,
    )
    steps = []
    for way in WAYS:
        training = run_of(**way)
        step = estimate_step(
            training.model, training.layout, training.machine, global_batch=training.step.num_samples, constants=theirs
        )
        steps.append((training, step.total_s))
    found = calibrate_to(steps)
    before, after = (
        max(abs(one / measured - 1) for one, measured in zip(ours, found.measured_s, strict=True))
        for ours in (found.before_s, found.after_s)
    )
    assert after < 0.02 < before
    by_name = {one.name: one for one in found.fitted}
    products = by_name["matrix_efficiency of hopper"]
    assert products.low < theirs.matrix_efficiency["hopper"] < products.high
    assert by_name["network_efficiency"].after < published.network_efficiency
    assert found.step_error(asked) < 0.05 < asked.step_error


def test_a_step_as_published_changes_nothing_but_the_interval():
    asked = run_of()
    found = calibrate_to([(asked, asked.step.total_s)])
    assert all(one.after == pytest.approx(one.before, rel=1e-6) for one in found.fitted)
    assert found.step_error(asked) < asked.step_error


def test_more_steps_leave_less_uncertain():
    asked = run_of()
    one = calibrate_to([(asked, 1.1 * asked.step.total_s)])
    own = [run_of(**way) for way in WAYS]
    more = calibrate_to([(training, 1.1 * training.step.total_s) for training in own])
    assert all(after.left <= before.left + 1e-9 for before, after in zip(one.fitted, more.fitted, strict=True))
    assert more.step_error(asked) <= one.step_error(asked)


def calibrated_estimate(tmp_path: Path, name: str, text: str, **given: object) -> Estimate:
    (tmp_path / name).write_text(text)
    return estimate(**{**ASKED, **given}, calibrate=str(tmp_path / name))  # type: ignore[arg-type]


def test_a_table_a_trace_and_a_log_are_read(tmp_path: Path):
    usual = run_of()
    slower = 1.25 * usual.step.total_s
    table = calibrated_estimate(tmp_path, "steps.csv", f"step,tp,zero\n{slower},,\n{2.1 * slower} s,4,3\n")
    assert table.calibration is not None
    assert len(table.calibration.measured_s) == 2
    log = "\n".join(
        f" iteration {n} | elapsed time per iteration (ms): {1e3 * slower * (1 + n % 2 / 50):.1f} |" for n in range(9)
    )
    trace = ['{"schema": 1, "worker": 0, "policy": "bsp", "origin_s": 0.0}']
    trace += [f'{{"k":"compute","t":{clock * slower:.6f},"d":{slower / 2:.6f},"c":{clock}}}' for clock in range(6)]
    for name, text in (("train.log", log), ("trace-0.jsonl", "\n".join(trace) + "\n")):
        found = calibrated_estimate(tmp_path, name, text)
        assert found.calibration is not None
        assert found.calibration.measured_s == (pytest.approx(slower, rel=1e-3),)
        # the run is as slow as the step
        assert found.training.total_s == pytest.approx(1.25 * usual.total_s, rel=0.05)
        assert found.training.step_error < usual.step_error
        assert "Calibrated to 1 measured step," in found.findings[0]


def runs_of(found: Estimate) -> list[Training]:
    if found.frontier is not None:
        return list(found.frontier.trainings)
    assert found.plans is not None
    return [plan.training for plan in found.plans.plans]


@pytest.mark.parametrize("how", [{"search": True, "num_devices": (32,)}, {"by": "2027-03-01", "start": "2027-01-01"}])
def test_a_search_and_a_day_take_own_constants(tmp_path: Path, how: dict[str, object]):
    """All machines of the kind are as slow as the step, and as certain; another kind is as it was."""
    asked = {"tp": 2, "zero": 1, "model": "llama-3-8b", "tokens": 1e11, "cluster": "64xh100", **how}
    usual = estimate(**asked)  # type: ignore[arg-type]
    step_s = 1.25 * run_of().step.total_s
    (tmp_path / "steps.csv").write_text(f"step,tp,cluster\n{step_s},2,64xh100\n")
    found = estimate(**asked, calibrate=str(tmp_path / "steps.csv"))  # type: ignore[arg-type]
    assert found.calibration is not None
    assert found.uncalibrated is not None
    assert found.training.total_s == pytest.approx(1.25 * found.uncalibrated.total_s, rel=0.06)
    assert found.training.step_error < found.uncalibrated.step_error
    theirs = runs_of(usual)
    for one in runs_of(found):
        same = next((other for other in theirs if other.machine == one.machine), None)
        assert same is None or one.total_s > 1.1 * same.total_s
        assert one.constants == found.calibration.constants
    elsewhere = run_of(cluster="64xa100")
    assert found.calibration.step_error(elsewhere) == elsewhere.step_error


def test_a_step_without_a_machine_is_refused(tmp_path: Path):
    (tmp_path / "steps.csv").write_text("step,tp\n7,2\n")
    with pytest.raises(ConfigError, match="row 1: there is no cluster; add a column cluster"):
        estimate(model="llama-3-8b", tokens=1e11, by="2027-03-01", calibrate=str(tmp_path / "steps.csv"))


def test_what_is_far_from_anything_published_says_so(tmp_path: Path):
    found = calibrated_estimate(tmp_path, "steps.csv", f"step_s\n{2.5 * run_of().step.total_s}\n")
    assert "another `--software`, a slower link or a waiting host" in found.findings[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "has no rows; write a header with a column step"),
        ("a.csv", "tp\n2\n", "has no column step"),
        ("a.csv", "step,tensor\n2,2\n", '"tensor" is no option of plesio estimate'),
        ("a.csv", "step\nquick\n", 'row 1: "quick"'),
        ("a.csv", "step\n-1\n", 'row 1: a step of "-1"; write seconds, more than 0'),
        ("a.csv", "step,sequence-parallel\n1,perhaps\n", 'row 1: "perhaps" for sequence-parallel; write yes or no'),
        ("a.csv", "step,tp\n4.6,2\n4.6,2,9\n", "a.csv, row 2: 3 values below 2 columns; write commas between values"),
        ("a.csv", "step;tp\n4,6;2\n", "a.csv, row 1: 2 values below 1 column; write commas between values, and points"),
        ("a.csv", "step,TP,tp\n4.6,2,2\n", 'two columns for "tp"; write one'),
        ("a.csv", "tp,step\n4\n", "row 1: "),
        ("a.log", "nothing", 'no "elapsed time per iteration (ms)" of Megatron-LM'),
        ("a.jsonl", '{"schema": 1, "worker": 0, "policy": "bsp", "origin_s": 0.0}\n', "no two steps after each other"),
    ],
)
def test_a_file_without_steps_is_refused_in_a_line(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    assert message in refusal_of(lambda: read_own_steps(tmp_path / name, inputs_of(estimate)))


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("step\n0.001\n", {}, "steps.csv: the steps are too short: "),
        ("step\n4.6\n", {"cluster": "1xb200", "tp": 1}, "would be .*, above the peak; check the unit"),
        ("step\n7210\n", {}, "step 1 took 2 h .*times as long as published constants say; check the unit"),
        ("step,tp\n14,2\n5.5,2\n", {}, "step . took .*, and constants fitted to it say .*; check the unit"),
    ],
)
def test_steps_that_no_machine_takes_are_refused(tmp_path: Path, text: str, given: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        calibrated_estimate(tmp_path, "steps.csv", text, any_memory=True, **given)


def test_a_table_may_begin_with_a_mark_and_have_capitals(tmp_path: Path):
    (tmp_path / "a.csv").write_text("\ufeffStep,TP\n4.6,2\n", encoding="utf-8")
    (step,) = read_own_steps(tmp_path / "a.csv", inputs_of(estimate))
    assert (step.step_s, step.given) == (4.6, {"tp": 2})


def test_a_row_that_cannot_be_laid_out_names_itself(tmp_path: Path):
    with pytest.raises(ConfigError, match="row 2: "):
        calibrated_estimate(tmp_path, "steps.csv", "step,tp\n1,2\n1,7\n")
