"""What theory says about stale, noisy, compressed and distributed optimisation, as functions with units and sources.

`THEOREMS` lists what ``plesio bound`` evaluates; `docs/theory.md` explains each, and which statements are kept out.
`plesio.theory.statements` has claims that are often made, each with a check that computes whether it holds.
"""

from plesio.theory.bound import Bound, Condition
from plesio.theory.catalogue import THEOREMS, Theorem, find_theorem

__all__ = ["THEOREMS", "Bound", "Condition", "Theorem", "find_theorem"]
