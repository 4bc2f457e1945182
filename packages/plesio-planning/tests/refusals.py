"""The refusals that tests ask for."""

from collections.abc import Callable

import pytest

from plesio.core.errors import ConfigError


def refusal_of(ask: Callable[[], object]) -> str:
    """Return the message with which something is refused, which has to be one line."""
    with pytest.raises(ConfigError) as refused:
        ask()
    assert "\n" not in str(refused.value)
    return str(refused.value)
