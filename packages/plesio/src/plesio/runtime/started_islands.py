"""The workers of a job by the processes that a launcher has started for them, of which an island has several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plesio.core.units import counted, listed
from plesio.runtime.supervisor import WorkerCommand
from plesio.runtime.worker.environment import ISLAND_VARIABLE, island_sizes


@dataclass(frozen=True, slots=True)
class StartedIslands:
    """The workers of a job, by rank.

    Attributes:
        sizes: Ranks of each worker at the start; one each where there are no islands.
        title: What was started, in words.
    """

    sizes: tuple[int, ...]
    title: str
    _workers: dict[int, int]

    @classmethod
    def of(cls, environment: Mapping[str, str], *, num_processes: int) -> "StartedIslands":
        text = environment.get(ISLAND_VARIABLE)
        if text is None:
            one_each = {rank: rank for rank in range(num_processes)}
            return cls((1,) * num_processes, counted(num_processes, "worker"), one_each)
        sizes = island_sizes(text, num_processes=num_processes, by="--island")
        ranks = f"{listed(sizes)} ranks" if len(set(sizes)) > 1 else counted(sizes[0], "rank")
        title = f"{counted(len(sizes), 'island')} of {ranks}"
        return cls(sizes, title, dict(enumerate(w for w, size in enumerate(sizes) for _ in range(size))))

    def grouped(self, commands: Sequence[WorkerCommand]) -> Sequence[WorkerCommand]:
        """Return the processes at the start, those of an island together."""
        if len(self.sizes) == len(self._workers):
            return commands
        return [replace(command, worker=self._workers[command.rank]) for command in commands]

    def add(self, commands: Sequence[WorkerCommand]) -> None:
        """Take note of an island that takes the place of another."""
        self._workers.update({command.rank: command.worker for command in commands if command.worker is not None})

    def worker_of(self, rank: int) -> int:
        return self._workers[rank]

    def size_of(self, worker: int) -> int:
        return sum(one == worker for one in self._workers.values())

    def excused(self, lost: set[int]) -> set[int]:
        """Return the ranks of workers that are lost, and of all that came later: the others have done without them."""
        return {rank for rank, worker in self._workers.items() if worker in lost or worker >= len(self.sizes)}
