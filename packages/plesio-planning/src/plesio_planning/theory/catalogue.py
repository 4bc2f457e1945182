"""The theorems that can be evaluated by name, and how each is drawn."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plesio.core.errors import ConfigError, nearest
from plesio.core.inputs import Input, checked, inputs_of
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.changing_bound import changing_bound, chosen_bound, varying_staleness
from plesio_planning.theory.communication import all_reduce_bytes, asynchronous_rate, best_num_workers, speedup
from plesio_planning.theory.convergence import (
    asynchronous_average_staleness,
    asynchronous_nonconvex,
    compressed_gradients,
    delayed_strongly_convex,
    error_feedback,
    local_sgd,
    synchronous_sgd,
)
from plesio_planning.theory.generalisation import generalisation_gap
from plesio_planning.theory.gradient_noise import batch_variance, critical_batch
from plesio_planning.theory.grid import grid
from plesio_planning.theory.local_steps import local_staleness
from plesio_planning.theory.parallelism import pipeline_bubble, zero_memory
from plesio_planning.theory.reliability import checkpoint_interval
from plesio_planning.theory.stability import constant_staleness
from plesio_planning.theory.unbiased_compression import unbiased_compression


@dataclass(frozen=True, slots=True)
class Theorem:
    """A function that returns a `Bound`, with keyword arguments whose names carry their units.

    Attributes:
        function: Its defaults are an example.
        source: Source of the proof.
        over: The input that is along the picture's axis.
    """

    function: Callable[..., Bound]
    source: str
    over: str

    @property
    def name(self) -> str:
        """The name on the command line.

        >>> find_theorem("local-sgd").name
        'local-sgd'
        """
        return self.function.__name__.replace("_", "-")

    @property
    def summary(self) -> str:
        """One line."""
        return inspect.cleandoc(self.function.__doc__ or "").partition("\n")[0]

    @property
    def statement(self) -> str:
        """The theorem itself: the docstring between its first line and its example."""
        text = inspect.cleandoc(self.function.__doc__ or "").partition("\n\n")[2].partition("\n\n>>>")[0]
        return text.replace("``", "").replace("`", "")

    def inputs(self) -> tuple[Input, ...]:
        """Return the inputs that can be given."""
        return inputs_of(self.function)

    def evaluate(self, **inputs: Any) -> Bound:
        """Its bound, with its defaults where ``inputs`` says nothing.

        Raises:
            ConfigError: A premise does not hold, or there is no such input.
        """
        known = [each.name for each in self.inputs()]
        for name in inputs:
            if name not in known:
                raise ConfigError(f'{self.name} has no input "{name}"; {nearest(name, known)}')
        return checked(self.function)(**inputs)


THEOREMS: tuple[Theorem, ...] = (
    Theorem(synchronous_sgd, "Bubeck 2015", "num_steps"),
    Theorem(delayed_strongly_convex, "Arjevani, Shamir & Srebro 2020; Stich & Karimireddy 2020", "num_steps"),
    Theorem(asynchronous_average_staleness, "Koloskova, Stich & Jaggi 2022; Mishchenko et al. 2022", "num_steps"),
    Theorem(asynchronous_nonconvex, "Lian, Huang, Li & Liu 2015", "num_steps"),
    Theorem(changing_bound, "after Lian, Huang, Li & Liu 2015", "num_steps_each"),
    Theorem(chosen_bound, "after Lian, Huang, Li & Liu 2015; Doob 1953", "max_bound"),
    Theorem(local_sgd, "Khaled, Mishchenko & Richtárik 2020", "period"),
    Theorem(compressed_gradients, "Bertsekas & Tsitsiklis 2000", "num_steps"),
    Theorem(error_feedback, "Karimireddy, Rebjock, Stich & Jaggi 2019", "kept_share"),
    Theorem(unbiased_compression, "after Alistarh, Grubic, Li, Tomioka & Vojnović 2017", "compression_variance"),
    Theorem(generalisation_gap, "Hardt, Recht & Singer 2016", "num_steps"),
    Theorem(batch_variance, "the variance of a mean", "num_workers"),
    Theorem(critical_batch, "McCandlish, Kaplan, Amodei et al. 2018", "batch_size"),
    Theorem(grid, "after Pham & Ahn 2025; Lian et al. 2015; Koloskova et al. 2020", "learning_rate"),
    Theorem(constant_staleness, "Levin & May 1976", "staleness"),
    Theorem(varying_staleness, "Yorke 1970", "max_staleness"),
    Theorem(local_staleness, "counting", "period"),
    Theorem(all_reduce_bytes, "Patarasuk & Yuan 2009", "num_ranks"),
    Theorem(speedup, "Amdahl 1967", "num_workers"),
    Theorem(best_num_workers, "the derivative of T(n)", "compute_s"),
    Theorem(asynchronous_rate, "counting", "step_times_s"),
    Theorem(pipeline_bubble, "Huang et al. 2019; Narayanan et al. 2021", "num_micro_batches"),
    Theorem(zero_memory, "Rajbhandari, Rasley, Ruwase & He 2020", "num_workers"),
    Theorem(checkpoint_interval, "Young 1974; Daly 2006", "num_hosts"),
)


def find_theorem(name: str) -> Theorem:
    """Find the theorem of this name.

    Raises:
        ConfigError: There is none.
    """
    for theorem in THEOREMS:
        if theorem.name == name:
            return theorem
    raise ConfigError(f'there is no bound "{name}"; {nearest(name, [theorem.name for theorem in THEOREMS])}')
