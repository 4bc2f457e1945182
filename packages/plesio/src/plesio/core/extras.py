"""Packages that only a part of Plesio needs, and the extra that brings each."""

from importlib.util import find_spec

from plesio.core.errors import ConfigError

_PACKAGES = {
    "report": {"jinja2": "jinja2", "plotly": "plotly", "matplotlib": "matplotlib", "pillow": "PIL", "scipy": "scipy"},
    "sim": {"numba": "numba", "scipy": "scipy"},
    "digits": {"scikit-learn": "sklearn"},
}
"""Modules by the names of their distributions."""


def require(extra: str, what: str) -> None:
    """Raise `ConfigError` unless the packages of an extra are installed; ``what`` needs them, and begins the text."""
    missing = [name for name, module in _PACKAGES[extra].items() if find_spec(module) is None]
    if missing:
        raise ConfigError(f'{what} needs {", ".join(missing)}; pip install "plesio[{extra}]"')
