"""Plain values, which a file may hold that runs nothing: Python's own numbers, texts, and lists and tables of them."""

from typing import Any

import numpy as np

__all__ = ["own_numbers"]


def own_numbers(value: Any) -> Any:
    """Put Python's numbers in place of NumPy's, in lists and tables too: a file of plain values takes these.

    >>> import numpy as np
    >>> own_numbers({"lr": np.float64(0.5), "lrs": [np.int64(3), (np.float32(0.25), "text")]})
    {'lr': 0.5, 'lrs': [3, (0.25, 'text')]}
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: own_numbers(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own_numbers(one) for one in value)
    return value
