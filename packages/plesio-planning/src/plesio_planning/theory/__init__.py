"""Theory of stale, noisy, compressed and distributed optimisation, as functions with units and sources.

`THEOREMS` lists what ``plesio bound`` evaluates; `docs/planning/theory.md` explains each, and which statements are kept
out. `plesio_planning.theory.statements` has claims that are often made, each with a check that computes whether it
holds.

Each function raises a `ConfigError` for a premise that does not hold and for an argument that is out of range.
"""

from plesio_planning.theory.bound import Bound, Condition
from plesio_planning.theory.catalogue import THEOREMS, Theorem, find_theorem

__all__ = ["THEOREMS", "Bound", "Condition", "Theorem", "find_theorem"]
