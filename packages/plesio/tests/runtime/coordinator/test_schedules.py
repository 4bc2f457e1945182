"""Whole runs in which anything arrives in any order; `benchmarks/stress_machines.py` plays a million of them."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.protocol.effects import Effect
from plesio.runtime.coordinator.sampling import Sampling
from support.schedules.chance import KINDS, POLICIES, play, random_moves, random_setting, shrunk
from support.schedules.moves import Move, Setting, read_schedule, write_schedule

FOUND = Path(__file__).with_name("schedules")
"""Failures that the campaign has found, reduced to the moves that they needed; mended since."""
MOVES = st.builds(Move, kind=st.sampled_from(KINDS), worker=st.integers(0, 4), server=st.just(0))
SETTINGS = st.builds(
    random_setting, st.sampled_from(POLICIES), st.integers(0, 2**16).map(lambda seed: random.Random(seed))
)


@settings(max_examples=100, deadline=None)
@given(setting=SETTINGS, moves=st.lists(MOVES, max_size=60))
def test_whatever_happens_in_whatever_order_the_laws_are_kept(setting: Setting, moves: list[Move]) -> None:
    play(setting, moves)


@pytest.mark.parametrize("policy", POLICIES)
def test_schedules_by_chance_keep_the_laws(policy: str) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        setting = random_setting(policy, rng)
        play(setting, random_moves(setting, rng))


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.jsonl")), ids=lambda path: path.stem)
def test_what_the_campaign_has_found_is_mended(path: Path) -> None:
    setting, moves = read_schedule(path)
    assert isinstance(setting, Setting)
    play(setting, [move for move in moves if isinstance(move, Move)])


def test_a_schedule_that_fails_is_made_short_and_fails_again_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what a lost worker held is not given out again."""

    def keep(sampling: Sampling, worker: int) -> list[Effect]:
        sampling._asking.pop(worker, None)
        return []

    monkeypatch.setattr(Sampling, "withdraw", keep)

    def fails(moves: Sequence[Move]) -> bool:
        try:
            play(setting, moves)
        except AssertionError:
            return True
        return False

    setting = Setting(policy="asp", racks=(0, 0), num_samples=12)
    schedules = (random_moves(setting, random.Random(seed)) for seed in range(200))
    moves = next(moves for moves in schedules if len(moves) > 50 and fails(moves))
    short = shrunk(moves, fails)
    assert len(short) < len(moves) / 2
    assert {move.kind for move in short} & {"kill", "notice"}
    write_schedule(tmp_path / "short.jsonl", setting, short)
    assert read_schedule(tmp_path / "short.jsonl") == (setting, short)
