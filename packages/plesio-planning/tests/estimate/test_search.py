"""The fastest layout, held against trying all by hand."""

import math
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import (
    SOFTWARE,
    Layout,
    Machine,
    Search,
    estimate_memory,
    estimate_step,
    estimate_training,
    find_model,
    parse_machine,
    search_layouts,
)
from plesio_planning.estimate.capacity import that_fits
from plesio_planning.estimate.frontier import find_frontier, pareto_front
from plesio_planning.estimate.search_space import layouts_of

RESERVE = 0.05
"""The share of a device's memory that the search keeps free."""
MACHINE = parse_machine("16xa100")
MODEL = find_model("llama-2-7b")
BATCH = 32
FEW = {"zero": 1, "cp": 1, "recomputation": "none"}
HERE = {"offload": False, "offload_activations": False, "recomputed_layers": None}
"""Nothing is in the host, and all layers are alike."""


def brute_force(machine: Machine, *, global_batch: int, **few: Any) -> list[tuple[float, Layout]]:
    """Seconds of a step for each layout that fits, of all numbers for every degree, the fastest first."""
    numbers = [number for number in range(1, 33) if number in (1, 2, 4, 8, 16, 32)]
    choices: dict[str, Any] = {
        **dict.fromkeys(("tp", "pp", "vpp", "cp", "micro_batch"), numbers),
        "zero": range(4),
        "recomputation": ("none", "partial", "full"),
        "recomputed_layers": (None, *range(1, MODEL.num_layers)),
        "schedule": ("1f1b", "zero-bubble", "dualpipe"),
        "offload": (False, True),
        "offload_activations": (False, True),
        **few,
    }
    found = []
    for values in product(*choices.values()):
        given = dict(zip(choices, values, strict=True))
        dp = machine.num_devices // (given["tp"] * given["pp"] * given["cp"])
        if not dp or given["tp"] > 8 or given["cp"] > 4 or given["micro_batch"] > 16:
            continue
        # ZeRO 3 among all replicas, or those of one of the two hosts
        a_host = 8 // given["tp"]
        for shard in (None, a_host) if given["zero"] == 3 and dp * given["cp"] > a_host else (None,):
            layout = Layout(dp=dp, shard=shard, sequence_parallel=given["tp"] > 1, **given)
            try:
                memory = estimate_memory(MODEL, layout, machine, global_batch=global_batch)
            except ConfigError:
                continue
            if memory.fits and memory.total_bytes <= (1 - RESERVE) * memory.capacity_bytes:
                step = estimate_step(MODEL, layout, machine, global_batch=global_batch)
                found.append((step.total_s, layout))
    return sorted(found, key=lambda one: one[0])


@pytest.fixture(scope="module")
def searched() -> Search:
    return search_layouts(MODEL, MACHINE, global_batch=BATCH, fixed=HERE)


def test_the_search_finds_what_brute_force_finds(searched: Search):
    """The ten fastest and all that are as fast, where all fits; in a small space, where much does not, the fastest."""
    by_hand = brute_force(MACHINE, global_batch=BATCH, **{name: [value] for name, value in HERE.items()})
    tenth_s = searched.distinct(10)[-1][0].step.total_s
    fast = {layout for step_s, layout in by_hand if step_s <= tenth_s * (1 + 1e-9)}
    assert {one.layout for one in searched.candidates if one.step.total_s <= tenth_s * (1 + 1e-9)} == fast
    assert searched.best.step.total_s == pytest.approx(by_hand[0][0], rel=1e-9)
    steps_s = [candidate.step.total_s for candidate in searched.candidates]
    assert steps_s == pytest.approx(sorted(steps_s), rel=1e-9)
    assert searched.num_tried == outcomes(searched)


@pytest.mark.parametrize("offload", [{"zero": 1}, {"offload": False}, {"zero": 0}])
def test_what_is_given_up_for_memory_is_the_least(offload: dict[str, Any]):
    """On four devices of 40 GB layers are computed again, or the host keeps what it takes."""
    machine = parse_machine("4xa100-40gb")
    fixed = {"micro_batch": 4, "cp": 1, **offload}
    found = search_layouts(MODEL, machine, global_batch=8, fixed=fixed)
    few = {name: [value] for name, value in fixed.items()} | {"pp": [1, 2], "tp": [1, 2], "vpp": [1, 4]}
    few |= {"recomputed_layers": [None, 2, 3, 4, 5, 8, 11, 12, 13, 14, 15, 16, 20, 24, 28, 29, 30, 31]}
    by_hand = brute_force(machine, global_batch=8, **few)
    assert found.best.step.total_s <= by_hand[0][0] * (1 + 1e-9)
    assert found.best.memory.fits
    kept = found.best.layout
    assert kept.offload or kept.offload_activations or kept.recomputation != "none"


def outcomes(found: Search) -> int:
    return len(found.candidates) + found.num_not_divisible + found.num_too_large + found.num_slower


def test_no_layout_that_is_estimated_alone_beats_the_search():
    """Alone one that does not fit is estimated with 14 bytes a parameter; so it is in a search."""
    model, machine = find_model("nemotron-4-340b"), parse_machine("128xh100")
    fixed = {"tp": 8, "pp": 8, "vpp": 12, "zero": 1, **HERE}
    alone = []
    for layout in layouts_of(model, machine, global_batch=BATCH, fixed=fixed):
        try:
            taken = that_fits(model, layout, machine, global_batch=BATCH)
        except ConfigError:
            continue
        memory = estimate_memory(model, taken, machine, global_batch=BATCH)
        if memory.total_bytes <= (1 - RESERVE) * memory.capacity_bytes:
            alone.append((taken, estimate_step(model, taken, machine, global_batch=BATCH).total_s))
    found = search_layouts(model, machine, global_batch=BATCH, may_be_lean=True, fixed=fixed)
    assert {candidate.layout for candidate in found.candidates} <= {layout for layout, _ in alone}
    assert found.best.step.total_s == pytest.approx(min(step_s for _, step_s in alone), rel=1e-9)
    assert found.best.layout.keeps_remainders
    usual = search_layouts(model, machine, global_batch=BATCH, fixed=fixed)
    assert found.best.step.total_s < 0.94 * usual.best.step.total_s
    assert not any(candidate.layout.keeps_remainders for candidate in usual.candidates)
    kept = {**fixed, "recomputation": "none", "recomputed_layers": None}
    for may_be_lean, larger in ((False, "256xh100"), (True, "128xh100")):
        with pytest.raises(ConfigError, match=f"fits into the memory of 64xh100 .*; write {larger}, or"):
            search_layouts(model, parse_machine("64xh100"), global_batch=BATCH, may_be_lean=may_be_lean, fixed=kept)


@pytest.mark.parametrize("machine", ["24xa100", "16xa100", "40xa100"])
def test_a_batch_near_the_one_wanted_is_as_fast_as_the_best_of_all(machine: str):
    parsed = parse_machine(machine)
    best_s = {}
    for batch in range(16, 65):
        try:
            best_s[batch] = search_layouts(MODEL, parsed, global_batch=batch, top=1, fixed=FEW).best.step.sample_s
        except ConfigError:
            continue  # no layout divides it
    near = search_layouts(MODEL, parsed, global_batch=BATCH, near=True, fixed=FEW)
    assert near.best.step.sample_s <= 1.025 * min(best_s.values())
    assert near.num_tried == outcomes(near)
    for one in near.candidates:
        assert BATCH / 2 <= one.step.num_samples <= 2 * BATCH
    # another batch saves 2.5 % for a doubling
    doublings = abs(math.log2(near.best.step.num_samples / BATCH))
    assert near.best.step.sample_s * (1 + 0.025 * doublings) <= best_s.get(BATCH, math.inf) * (1 + 1e-9)


def test_replicas_that_divide_no_near_batch_take_a_farther_one():
    """Pipelines of 409 replicas: 13 days without interleaving, 7.9 with a batch of 4 x 409."""
    fixed = {**FEW, "tp": 2, "pp": 4, "micro_batch": 1}
    machine = parse_machine("3272xh100")
    found = search_layouts(
        find_model("llama-70b"), machine, global_batch=1024, near=True, may_be_lean=True, fixed=fixed
    )
    assert found.best.step.num_samples == 1636


def test_replicas_of_more_sequences_than_are_wanted_take_a_larger_batch():
    found = search_layouts(MODEL, parse_machine("488xa100"), global_batch=8, near=True, fixed={**FEW, "tp": 8, "pp": 1})
    assert found.best.step.num_samples == found.best.layout.dp == 61


def test_layouts_that_take_as_long_are_shown_once():
    """One replica has nothing that ZeRO could share, so its stages are as fast."""
    found = search_layouts(find_model("llama-2-7b"), parse_machine("8xa100"), global_batch=8, fixed={"dp": 1, "cp": 1})
    shown = found.distinct(10)
    assert len(shown) == 10
    steps_s = [candidate.step.total_s for candidate, _ in shown]
    assert all(later > earlier * (1 + 1e-9) for earlier, later in pairwise(steps_s))
    assert all(as_fast >= 2 for _, as_fast in shown)
    every = found.distinct(10)
    assert sum(1 + as_fast for _, as_fast in every) <= len(found.candidates)
    for candidate, _ in every:
        same = [one for one in found.candidates if one.step.total_s == candidate.step.total_s]
        assert candidate.memory.total_bytes == min(one.memory.total_bytes for one in same)


def test_every_cell_of_the_heat_map_is_the_best_of_its_degrees(searched: Search):
    cells = searched.best_by_degrees()
    assert len(cells) > 10
    for (tp, pp), best in cells.items():
        alone = search_layouts(MODEL, MACHINE, global_batch=BATCH, fixed={**HERE, "tp": tp, "pp": pp}, top=1).best
        assert best.step.total_s == pytest.approx(alone.step.total_s, rel=1e-9)


def test_what_is_fixed_stays():
    found = search_layouts(MODEL, MACHINE, global_batch=BATCH, fixed={"tp": 2, "zero": 1, "recomputation": "full"})
    for candidate in found.candidates:
        layout = candidate.layout
        assert (layout.tp, layout.zero, layout.recomputation) == (2, 1, "full")
    with pytest.raises(ConfigError, match="tp = 3 cannot be had from 16 devices"):
        search_layouts(MODEL, MACHINE, global_batch=BATCH, fixed={"tp": 3})


def test_selective_recomputation_is_searched_where_attention_is_not_fused():
    kinds = {
        software: {
            layout.recomputation for layout in layouts_of(MODEL, MACHINE, global_batch=BATCH, fixed={"software": each})
        }
        for software, each in SOFTWARE.items()
    }
    assert kinds["current"] == {"none", "partial", "full"}
    assert kinds["megatron-2022"] == {"none", "selective", "full"}


def test_experts_are_shared_and_images_need_only_replicas():
    mixture = search_layouts(find_model("mixtral-8x7b"), parse_machine("32xh100"), global_batch=64, fixed={"zero": 1})
    assert mixture.best.layout.ep > 1
    images = search_layouts(
        find_model("resnet50"), parse_machine("8xv100"), global_batch=256, fixed={"precision": "fp16"}
    )
    assert images.best.layout.num_devices == images.best.layout.dp == 8


def test_a_faster_machine_is_never_slower(searched: Search):
    nic = replace(MACHINE.nic, bytes_per_s=2 * MACHINE.nic.bytes_per_s)
    assert (
        search_layouts(MODEL, replace(MACHINE, nic=nic), global_batch=BATCH, top=1).best.step.total_s
        <= searched.best.step.total_s
    )


def test_progress_reaches_its_end():
    seen: list[tuple[int, int]] = []
    found = search_layouts(
        MODEL, MACHINE, global_batch=BATCH, on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen[0] == (0, found.num_tried)
    assert seen[-1] == (found.num_tried, found.num_tried)
    assert seen == sorted(seen)


def test_a_model_that_fits_nowhere_names_a_machine_that_would_do():
    model = find_model("llama-3-405b")
    with pytest.raises(
        ConfigError, match=r"fits into the memory of 8xa100 with sequences of 8,192 tokens; write (\d+)xa100"
    ) as error:
        search_layouts(model, parse_machine("8xa100"), global_batch=256)
    larger = str(error.value).partition("; write ")[2].partition(",")[0]
    assert search_layouts(model, parse_machine(larger), global_batch=256).best.memory.fits


def test_a_precision_that_the_device_lacks_is_refused():
    with pytest.raises(ConfigError, match='did you mean "fp16"'):
        search_layouts(MODEL, parse_machine("8xv100"), global_batch=BATCH, fixed={"precision": "bf16"})


def test_nothing_on_the_front_is_beaten():
    machines = [
        MACHINE,
        parse_machine("8xa100"),
        parse_machine("32xa100"),
        parse_machine("16xh100"),
        parse_machine("1xv100"),
    ]
    frontier = find_frontier(MODEL, machines, global_batch=BATCH, tokens=1e10)
    assert set(frontier.refused) == {"1xv100"}
    assert len(frontier.trainings) == 4
    assert frontier.on(MACHINE).machine == MACHINE
    for one in frontier.front:
        assert not any(other.total_s < one.total_s and other.cost < one.cost for other in frontier.trainings)
    for one in frontier.trainings:
        assert any(other.total_s <= one.total_s and other.cost <= one.cost for other in frontier.front)
    # the same run from the layout that was found
    best = frontier.searches[MACHINE.name].best.layout
    again = estimate_training(MODEL, best, MACHINE, global_batch=BATCH, tokens=1e10)
    assert again.total_s == frontier.on(MACHINE).total_s
    assert pareto_front([again, again]) == (again,)


def test_the_machine_that_was_asked_for_must_do():
    with pytest.raises(ConfigError, match="1xv100"):
        find_frontier(
            MODEL, [parse_machine("1xv100"), MACHINE], global_batch=BATCH, tokens=1e10, fixed={"precision": "fp16"}
        )
