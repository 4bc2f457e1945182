"""Packages that only a part of Plesio needs, and the extra that brings each."""

from importlib.util import find_spec

from plesio.core.errors import ConfigError

__all__ = ["require"]

_PACKAGES = {
    "report": ("plotly", "matplotlib", "PIL", "scipy"),
    "sim": ("numba", "scipy"),
    "digits": ("sklearn",),
}


def require(extra: str, what: str) -> None:
    """Make sure that the packages of an extra are installed.

    Args:
        extra: Its name in brackets: ``pip install "plesio[sim]"``.
        what: The part of Plesio that needs them, as the beginning of a sentence.

    Raises:
        ConfigError: One is missing.
    """
    missing = [name for name in _PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise ConfigError(f'{what} needs {" and ".join(missing)}; pip install "plesio[{extra}]"')
