"""Habits of PyTorch scripts: each a small script, what it must come to, and what Plesio makes of it.

A habit is *honoured* (the script does what it does alone), *refused* (in one line, at the call that is named), or
*warned of* (once, and the line is in ``fallbacks``). `test_habits.py` runs all of them and holds ``docs/habits.md`` to
what they came to.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import Dataset

import plesio
from plesio.core.errors import PlesioError
from plesio.runtime.worker.environment import WorkerPlace

Kind = Literal["honoured", "refused", "warned", "unnoticed"]
NUM_SAMPLES = 48
BATCH_SIZE = 4


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """A linear problem whose samples carry their number."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(num_samples, 3, generator=generator)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


DATA = Numbered()


@dataclass
class Script:
    """The surroundings of a habit's script: its rank, and `plesio.join` with the policy of this run.

    Attributes:
        policy: Of this run.
        rank: This worker's.
        num_workers: 1 where the script runs alone.
        at: The call under way, for refusals: ``join``, ``shard``, ``step`` ...
    """

    policy: str
    rank: int
    num_workers: int
    job: plesio.Job | None = None
    at: str = "join"
    fallbacks: list[str] = field(default_factory=list)
    _sessions: list[Any] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        return self.num_workers == 1

    def join(self, model: Any, optimizer: Any, **arguments: Any) -> Any:
        self.at = "join"
        options = arguments.pop("options", None) or plesio.JoinOptions(job=self.job)
        session = plesio.join(model, optimizer, **{"policy": self.policy, "options": options, **arguments})
        self._sessions.append(session)
        self.at = "close"
        return session

    def train(
        self, session: Any, model: nn.Module, loader: Iterable[Any], *, after: Callable[[], None] = lambda: None
    ) -> list[int]:
        """One loop over the session's batches; the samples that this worker was given."""
        seen: list[int] = []
        self.at = "shard"
        for index, x, y in session.shard(loader):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            self.at = "step"
            session.step(loss)
            after()
            seen += index.tolist()
            self.at = "shard"
        self.at = "close"
        return seen

    def ended(self) -> None:
        """The lines that the sessions have left in ``fallbacks``; sessions that are open are closed."""
        for session in self._sessions:
            session.close()
            self.fallbacks += session.report().fallbacks

    def failed(self, error: Exception) -> None:
        """End sessions as a `with` block that the error leaves."""
        for session in self._sessions:
            with suppress(Exception):
                session.__exit__(type(error), error, error.__traceback__)


Facts = dict[str, Any]
"""Facts that a script has found on one worker, by name."""


@dataclass(frozen=True, kw_only=True)
class Habit:
    """One row of the table.

    Attributes:
        says: The habit, in words.
        script: Runs it; returns what the check needs.
        check: Raises AssertionError unless the workers' facts are what the script asks for.
        kind: What becomes of it where there is more than one worker, by policy if policies differ.
        alone: What becomes of it in a single process.
        part: Of the table.
        apart: Whether it leaves a job that other sessions cannot begin in.
    """

    says: str
    part: str
    script: Callable[[Script], Facts]
    check: Callable[[Sequence[Facts], "Script"], None]
    kind: Kind | dict[str, Kind]
    alone: Kind
    apart: bool = False

    @property
    def name(self) -> str:
        return self.script.__name__

    def expected(self, policy: str, *, alone: bool) -> Kind:
        if alone:
            return self.alone
        return self.kind if isinstance(self.kind, str) else self.kind[policy.partition(",")[0]]


@dataclass(frozen=True)
class Outcome:
    """The end of a habit's script on one worker."""

    kind: Kind
    line: str = ""
    at: str = ""
    facts: Facts = field(default_factory=dict)
    trace: str = ""
    """Traceback of an error that is not Plesio's."""


HABITS: list[Habit] = []


def net(rank: int) -> nn.Module:
    """A small network; replicas differ until the session makes them rank 0's."""
    torch.manual_seed(100 + rank)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def sgd_net(script: Script) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same with SGD."""
    model = net(script.rank)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model: nn.Module) -> float:
    """The loss on all samples."""
    return F.mse_loss(model(DATA.x), DATA.y).item()


def numbers(model: nn.Module) -> list[float]:
    """All parameters and buffers of a model, in one list."""
    return torch.cat([tensor.detach().double().flatten() for tensor in model.state_dict().values()]).tolist()


def habit(
    says: str,
    *,
    part: str,
    check: Callable[..., None] = lambda facts, script: None,
    kind: Kind | dict[str, Kind] = "honoured",
    alone: Kind = "honoured",
    apart: bool = False,
) -> Callable[[Callable[[Script], Facts]], Callable[[Script], Facts]]:
    """Enter a script in the table."""

    def enter(script: Callable[[Script], Facts]) -> Callable[[Script], Facts]:
        if script.__name__ in {habit.name for habit in HABITS}:
            return script  # pytest imports a file of doctests under a name of its own
        HABITS.append(Habit(says=says, part=part, script=script, check=check, kind=kind, alone=alone, apart=apart))
        return script

    return enter


def _outcome(habit: Habit, script: Script) -> Outcome:
    try:
        facts = habit.script(script)
        script.ended()
    except PlesioError as error:
        script.failed(error)
        return Outcome("refused", line=str(error), at=script.at)
    except Exception as error:
        script.failed(error)
        return Outcome("refused", trace=traceback.format_exc())
    if script.fallbacks:
        return Outcome("warned", line=script.fallbacks[0], facts=facts)
    return Outcome("honoured", facts=facts)


def run_all(*, policy: str, names: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of each habit on this worker; those that end in a session share one job, as in a comparison."""
    chosen = [habit for habit in HABITS if habit.name in names]
    place = WorkerPlace.from_environment()
    if place is None:
        return {habit.name: _outcome(habit, Script(policy, 0, 1)) for habit in chosen}
    apart = [habit for habit in chosen if habit.apart or habit.expected(policy, alone=False) == "refused"]
    outcomes = {habit.name: _outcome(habit, Script(policy, place.rank, place.num_workers)) for habit in apart}
    with plesio.Job(place) as job:
        for habit in chosen:
            if habit not in apart:
                outcomes[habit.name] = _outcome(habit, Script(policy, place.rank, place.num_workers, job))
    return outcomes
