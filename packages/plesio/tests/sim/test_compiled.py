import subprocess
import sys
from typing import Any

import numba
import pytest

from plesio.sim.compiled import compiled


@compiled
def twice(number: float) -> float:
    return 2.0 * number


@compiled
def twice_and_one(number: float) -> float:
    return twice(number) + 1.0


def test_a_compiled_function_calls_another():
    assert twice_and_one(3.0) == twice_and_one.__wrapped__(3.0) == 7.0


def test_without_a_folder_for_the_cache_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch):
    njit = numba.njit

    def refuse_cache(function: Any, *, cache: bool = False) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(function)

    monkeypatch.setattr(numba, "njit", refuse_cache)

    @compiled
    def thrice(number: float) -> float:
        return 3.0 * number

    assert thrice(2.0) == 6.0


def test_importing_the_simulator_imports_neither_numba_nor_torch_nor_the_runtime():
    modules = ["kernel", "link", "sharing", "compiled"]
    program = (
        f"import sys, {', '.join('plesio.sim.' + name for name in modules)}\n"
        "print(*{'numba', 'torch', 'plesio.runtime'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"
