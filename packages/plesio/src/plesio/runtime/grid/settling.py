"""How a grid's run ends: all tell the one that collects what they have, it evaluates and writes, all hear the result.

If it is lost meanwhile, the others begin the end anew with the next one, as each has still got all that is its own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from plesio.core.results import Evaluation, RunResult
from plesio.runtime.grid.records import Books, Collector, Figures, Network, Shot, as_figures, as_tensor

__all__ = ["Settlement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One worker's part in the end.

    Attributes:
        collector: This worker's side of putting things together.
        network: What is put together.
        books: Make the result and write it.
        evaluations: Of the run so far; those of the shots are added, on the worker that collects.
        measure: Evaluates a state at a number of samples and a time; None evaluates nothing.
    """

    collector: Collector
    network: Network
    books: Books
    evaluations: list[Evaluation]
    measure: Callable[[tuple[dict[str, Tensor], float], int, float], Evaluation] | None

    def settle(self, figures: Figures, shots: Sequence[Shot]) -> tuple[RunResult, dict[str, Tensor] | None]:
        """The run's result, and the final network's state on the worker that collects.

        Args:
            figures: This worker's.
            shots: Its snapshots, the last one being what it ends with.

        Raises:
            PeerGoneError: A worker of this group is gone.
        """
        own, before = as_tensor(figures), list(self.evaluations)

        def conclude() -> tuple[str, dict[str, Tensor] | None]:
            self.evaluations[:] = before
            told = self.collector.gather([own])
            found = self._final(told, shots)
            text, state = (None, None) if found is None else found
            return self.collector.tell(text), state

        text, state = self.collector.retried(conclude)
        return RunResult.from_json(json.loads(text)), state

    def _final(
        self, told: Mapping[int, list[Tensor]] | None, shots: Sequence[Shot]
    ) -> tuple[str, dict[str, Tensor]] | None:
        """On the worker that collects: the result as text, and the final state."""
        figures = [] if told is None else [as_figures(rows[0]) for _, rows in sorted(told.items())]
        final = None
        for number, shot in enumerate(shots):
            states = self.collector.gather(shot.tensors)
            if states is None:
                continue
            final = self.network.whole(states, self.collector.formation.setting)
            if self.measure is not None:
                at_s = max(one.shots[number][1] for one in figures)
                self.evaluations.append(self.measure(final, shot.samples, at_s))
        if final is None:
            return None
        state, _ = final
        self.network.keep(state)
        result = self.books.result(figures, evaluations=self.evaluations, sha256=self.network.sha256(state))
        self.books.keep(result)
        return json.dumps(result.to_json()), state
