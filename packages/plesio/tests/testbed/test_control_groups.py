"""Limits of a host, as both versions of control groups are told of them; the kernel's folder is one of the test's."""

from pathlib import Path

import pytest

from plesio.core.errors import PlesioError
from plesio.testbed import control_groups
from plesio.testbed.control_groups import ControlGroup, group_names, remove_groups, why_no_groups


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def unified(root: Path) -> Path:
    """Version 2: one tree for all controllers."""
    (root / "cgroup.controllers").write_text("cpu memory")
    return root


@pytest.fixture
def separate(root: Path) -> Path:
    """Version 1: a tree for each."""
    for controller in ("cpu", "memory"):
        (root / controller).mkdir()
    return root


def written(root: Path) -> dict[str, str]:
    return {str(file.relative_to(root)): file.read_text() for file in root.rglob("*") if file.is_file()}


def test_version_2_has_both_limits_in_one_folder(unified: Path):
    group = ControlGroup(name="plesio-1", cores=1.5, memory_bytes=2**30)
    group.make()
    assert group.folders == (unified / "plesio-1",)
    assert written(unified) == {
        "cgroup.controllers": "cpu memory",
        "cgroup.subtree_control": "+cpu +memory",
        "plesio-1/cpu.max": "15000 10000",
        "plesio-1/memory.max": str(2**30),
    }


def test_version_1_has_a_folder_for_each_limit(separate: Path):
    group = ControlGroup(name="plesio-1", cores=0.5, memory_bytes=2**30)
    group.make()
    assert group.folders == (separate / "cpu/plesio-1", separate / "memory/plesio-1")
    assert written(separate) == {
        "cpu/plesio-1/cpu.cfs_period_us": "10000",
        "cpu/plesio-1/cpu.cfs_quota_us": "5000",
        "memory/plesio-1/memory.limit_in_bytes": str(2**30),
    }


def test_less_than_a_tenth_of_a_core_is_what_it_says(unified: Path):
    ControlGroup(name="plesio-1", cores=0.05).make()
    assert written(unified)["plesio-1/cpu.max"] == "1000 20000"


@pytest.mark.parametrize("version", ["unified", "separate"])
def test_what_is_not_limited_has_no_folder(version: str, request: pytest.FixtureRequest):
    root: Path = request.getfixturevalue(version)
    before = written(root)
    free = ControlGroup(name="plesio-1")
    free.make()
    assert free.folders == ()
    assert written(root) == before
    ControlGroup(name="plesio-1", cores=1.0).make()
    assert group_names("plesio-") == {"plesio-1"}


@pytest.mark.parametrize("version", ["unified", "separate"])
def test_groups_that_nobody_is_in_are_removed(version: str, request: pytest.FixtureRequest):
    root: Path = request.getfixturevalue(version)
    place = root if version == "unified" else root / "cpu"
    for name in ("plesio-1-0", "plesio-1-1", "plesio-2-0"):
        (place / name).mkdir()
    (place / "plesio-1-1" / "somebody").touch()  # as a folder with processes, it cannot be removed
    remove_groups("plesio-1-")
    assert group_names("plesio-") == {"plesio-1-1", "plesio-2-0"}


def test_what_cannot_be_written_is_said_in_one_line(separate: Path):
    assert why_no_groups() is None
    (separate / "memory").rmdir()
    reason = why_no_groups()
    assert reason is not None
    assert str(separate / "memory") in reason
    with pytest.raises(PlesioError, match=r"cannot limit what a test host uses: .*No such file"):
        ControlGroup(name="plesio-1", memory_bytes=1).make()
