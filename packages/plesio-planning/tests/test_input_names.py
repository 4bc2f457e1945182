"""One name for one thing: inputs of studies, bounds and estimates that are called alike are alike."""

from collections import defaultdict

from plesio.core.inputs import inputs_of
from plesio_planning.estimate.estimate import estimate
from plesio_planning.studies import STUDIES, find_study
from plesio_planning.theory import THEOREMS

FUNCTIONS = [*(study.function for study in STUDIES), *(theorem.function for theorem in THEOREMS), estimate]


def test_an_option_stands_for_one_name_and_one_unit():
    names: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for function in FUNCTIONS:
        for one in inputs_of(function):
            names[one.option].add((one.name, one.kind))
    several = {option: found for option, found in names.items() if len(found) > 1}
    # bounds of the asynchronous alternative may be infinite
    assert several == {"--bounds": {("bounds", "number"), ("bounds", "whole number")}}


def test_a_name_has_one_option():
    options: dict[str, set[str]] = defaultdict(set)
    for function in FUNCTIONS:
        for one in inputs_of(function):
            options[one.name].add(one.option)
    assert {name: found for name, found in options.items() if len(found) > 1} == {}


def test_degrees_and_sizes_of_a_model_are_those_of_an_estimate():
    of_estimate = {one.name for one in inputs_of(estimate)}
    for study in ("pipeline", "tensor-parallel", "time-to-train", "mixture-of-experts"):
        named = {one.name for one in find_study(study).inputs()}
        alike = {"tp", "pp", "vpp", "hidden_size", "sequence_length", "num_heads", "num_layers", "micro_batch"}
        alike |= {"num_experts", "experts_per_token", "global_batch", "cluster", "model", "price_per_h", "step_error"}
        alike |= {"device_mtbf_s", "checkpoint_interval_s", "restart_s", "storage_bytes_per_s", "confidence"}
        assert named & alike <= of_estimate, study
        assert len(named & alike) >= 3, study
