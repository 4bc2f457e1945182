"""Functions compiled by numba when they are first called, so that importing them costs nothing."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from plesio.core.extras import require

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> "_Compiled[P, R]":
    """Compile a function at its first call, and keep the machine code on disk where that is possible.

    It may call nothing but numba's functions and other compiled functions of its module. Arithmetic is that of IEEE 754
    in the order as written (no ``fastmath``), so results are the interpreter's to the bit; the interpreted function is
    at ``__wrapped__``.

    >>> @compiled
    ... def triangle(n):
    ...     total = 0
    ...     for i in range(n + 1):
    ...         total += i
    ...     return total
    >>> triangle(4), triangle.__wrapped__(4)
    (10, 10)
    """
    return _Compiled(function)


class _Compiled(Generic[P, R]):
    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._machine_code: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.machine_code()(*args, **kwargs)

    def machine_code(self) -> Callable[P, R]:
        """Return numba's compilation of it."""
        if self._machine_code is None:
            self._machine_code = cast("Callable[P, R]", _compile(self._linked()))
        return self._machine_code

    def _linked(self) -> FunctionType:
        """Return the function with the machine code of the compiled functions that it calls, as numba wants them."""
        function = cast(FunctionType, self.__wrapped__)
        names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        callees = {name: value.machine_code() for name, value in names.items() if isinstance(value, _Compiled)}
        linked = FunctionType(function.__code__, {**function.__globals__, **callees}, closure=function.__closure__)
        return cast(FunctionType, functools.update_wrapper(linked, function))


def _compile(function: FunctionType) -> Any:
    require("sim", "The virtual world")
    import numba  # half a second that only those pay who simulate

    try:
        return numba.njit(function, cache=True)
    except RuntimeError:  # no folder for the cache can be written: a read-only install without a home
        return numba.njit(function)
