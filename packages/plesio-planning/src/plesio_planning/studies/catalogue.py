"""The studies: their names and questions. A study's module is imported when it is asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from plesio.core.errors import ConfigError, nearest
from plesio.core.inputs import Input, checked, inputs_of
from plesio_planning.studies.study import Answer, Asked

_NUM_EXERCISES = 20
"""C.1 to C.20; the studies of further questions come after theirs."""


@dataclass(frozen=True, slots=True)
class Study:
    """A question that one function answers.

    Attributes:
        number: Its place, from 1 on.
        name: Name on the command line.
    """

    number: int
    name: str
    question: str

    @property
    def exercise(self) -> str | None:
        """The text's exercise that it answers, ``C.4``; None for a question that the text does not ask."""
        return f"C.{self.number}" if self.number <= _NUM_EXERCISES else None

    @property
    def function(self) -> Callable[..., Answer]:
        """The function of this name in the module of this name, which checks its inputs first."""
        name = self.name.replace("-", "_")
        return checked(getattr(import_module(f"plesio_planning.studies.models.{name}"), name))

    def inputs(self) -> tuple[Input, ...]:
        """Return the inputs that can be given."""
        return inputs_of(self.function)

    def ask(self, **inputs: Any) -> Asked:
        """Ask it, with its defaults where ``inputs`` says nothing.

        Raises:
            ConfigError: An input that the study has no answer for.
        """
        known: Mapping[str, Input] = {each.name: each for each in self.inputs()}
        for name in inputs:
            if name not in known:
                raise ConfigError(f'the study {self.name} has no input "{name}"; {nearest(name, known)}')
        answer = self.function(**inputs)
        return Asked(
            study=self.name,
            question=self.question,
            inputs={**{name: each.default for name, each in known.items()}, **inputs},
            answer=answer,
        )


STUDIES: tuple[Study, ...] = (
    Study(1, "data-parallel", "How far does data parallelism scale before communication overtakes computing?"),
    Study(2, "stragglers", "How much does a barrier cost when step times vary, and how much do backup workers save?"),
    Study(3, "bounded-staleness", "How many more iterations does staleness cost, and when does it diverge?"),
    Study(4, "collectives", "Which all-reduce is the fastest, and from which size on?"),
    Study(5, "pipeline", "How many micro-batches and which schedule does a pipeline need?"),
    Study(6, "compression", "At which bandwidth does compressing gradients pay?"),
    Study(7, "local-sgd", "How many local steps between averagings get to the target first?"),
    Study(8, "load-balancing", "How much do unequal workers cost, and how much does balancing save?"),
    Study(9, "loss-scaling", "Which loss scale keeps half-precision gradients in range?"),
    Study(10, "overlap", "Which bucket size hides the most communication behind the backward pass?"),
    Study(11, "parameter-server", "When is a parameter server slower than a ring, and by how much?"),
    Study(12, "mixture-of-experts", "How much does skewed routing cost in all-to-all time and dropped tokens?"),
    Study(13, "staleness-weighting", "When does weighting updates by their staleness pay?"),
    Study(14, "checkpointing", "How often should a run save its state?"),
    Study(15, "batch-scaling", "How far can the batch grow before it stops saving steps?"),
    Study(16, "consistency", "Which consistency model reaches the target first?"),
    Study(17, "tensor-parallel", "How much does splitting layers over devices send, and how long does it take?"),
    Study(18, "hierarchical", "How much does an all-reduce in two levels save over a flat one?"),
    Study(19, "determinism", "Why do two runs differ, and where do they first?"),
    Study(20, "time-to-train", "How long does a training run take, with its failures and its checkpoints?"),
    Study(21, "goodput", "Which share of a large machine's time is work, when its devices fail?"),
)


def find_study(name: str) -> Study:
    """Find the study of this name, or of this number, or exercise of the text.

    >>> find_study("pipeline").number, find_study("4").name, find_study("C.4").name
    (5, 'collectives', 'collectives')

    Raises:
        ConfigError: There is none.
    """
    for study in STUDIES:
        if name.casefold() in (study.name, str(study.number), study.exercise and study.exercise.casefold()):
            return study
    names = [study.name for study in STUDIES]
    raise ConfigError(f'there is no study "{name}"; {nearest(name, names)}')
