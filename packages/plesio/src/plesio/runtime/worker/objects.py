"""Finds objects that nothing else names, wherever a script keeps them."""

import gc
from typing import TypeVar

T = TypeVar("T")


def objects_of(kind: type[T]) -> list[T]:
    """Find all objects of a class that Python code defines, and of those derived from it.

    Each such object refers to its class, so the garbage collector finds it; that takes a thirtieth of a second.
    """
    kinds: list[type[T]] = [kind]
    for one in kinds:
        kinds += one.__subclasses__()
    # `type`, as `isinstance` would ask an object that makes itself at the first use
    return [one for one in gc.get_referrers(*kinds) if issubclass(type(one), kind)]
