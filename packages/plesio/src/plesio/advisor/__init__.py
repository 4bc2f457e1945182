"""Which strategy to train with: candidates, their prices, a race of runs, and what follows. Nothing here trains.

=============  =========================================================================================
file           concept
=============  =========================================================================================
setting        the question, and what is known before anything is run: sizes, steps, cluster
candidates     strategies and settings that are asked about
price          seconds of a step under each, by the cost models
memory         bytes of a worker under each
failures       what failures cost: elastic and gang
curve          how far a run is, smoothed, and when it comes to a level
runs, race     which candidate is run next and for how long, within a budget
row, advice    the ranking and the choice
flips          where another would be the best
words, code    the answer in sentences, as code, and as a recipe
=============  =========================================================================================

The caller passes a `Rehearsal`, which runs the candidates: `plesio.bench.advise` does it in the virtual world.
"""

from plesio.advisor.advice import Advice, advise
from plesio.advisor.code import code_for, recipe_for
from plesio.advisor.failures import FailureModel
from plesio.advisor.flips import Flip
from plesio.advisor.row import Row
from plesio.advisor.runs import Rehearsal, Rehearsed
from plesio.advisor.setting import ModelSizes, Question, Situation
from plesio.advisor.words import sentences_of

__all__ = [
    "Advice",
    "FailureModel",
    "Flip",
    "ModelSizes",
    "Question",
    "Rehearsal",
    "Rehearsed",
    "Row",
    "Situation",
    "advise",
    "code_for",
    "recipe_for",
    "sentences_of",
]
