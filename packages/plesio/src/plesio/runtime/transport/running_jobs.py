"""The jobs of this user that are under way on this machine: a note of each, beside the user's key, for who looks on.

Server 0 writes the note and removes it, so there is one for as long as the job can be asked. It holds no secret. One
that a killed server has left is removed by the next who looks.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from plesio.core.errors import ConfigError, DataError, TransportError
from plesio.core.files import write_whole
from plesio.core.records import from_values
from plesio.runtime.transport.job_secret import given_secret, private_folder, secret_of_user
from plesio.runtime.transport.security import JobKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job, and how its server 0 is reached.

    Attributes:
        meeting: ``HOST:PORT`` of its key-value store.
        starter: Name that its launcher gave it, if that is `plesio run`; its secret follows from one of the two names.
        folder: Where its present run writes traces and results; None for nowhere.
    """

    job: str
    meeting: str
    starter: str | None
    addresses: dict[str, str]
    folder: str | None = None
    pid: int = field(default_factory=os.getpid)

    def announce(self) -> None:
        """Write the note, in place of one that this job has already; a machine that takes none is no error."""
        with contextlib.suppress(OSError, ConfigError, DataError):
            _folder().mkdir(mode=0o700, exist_ok=True)
            write_whole(self._path(), json.dumps(asdict(self)))

    def withdraw(self) -> None:
        """Remove the note; harmless when there is none."""
        with contextlib.suppress(OSError, ConfigError):
            self._path().unlink(missing_ok=True)

    def secret(self) -> str | None:
        """Find the job's secret; None where it is neither this user's by name nor in the environment."""
        of_user = (secret_of_user(name) for name in (self.starter, self.job) if name)
        for secret in (given_secret(), *of_user):
            with contextlib.suppress(TransportError):
                if secret is not None:
                    JobKeys.derive(secret).check_seal(self.addresses)
                    return secret
        return None

    def _path(self) -> Path:
        return _folder() / f"{hashlib.blake2b(self.job.encode(), digest_size=16).hexdigest()}.json"

    @classmethod
    def all(cls) -> list["RunningJob"]:
        """List the jobs that are under way, as far as this user can ask them, by their addresses."""
        try:
            return sorted((job for job in cls._noted() if job.secret() is not None), key=lambda job: job.meeting)
        except (OSError, ConfigError):
            return []

    @classmethod
    def _noted(cls) -> Iterator["RunningJob"]:
        for path in sorted(_folder().glob("*.json")):
            try:
                job: RunningJob = from_values(json.loads(path.read_text(encoding="utf-8")), cls)
            except (OSError, ValueError, DataError):
                continue
            if Path("/proc", str(job.pid)).exists():
                yield job
            else:
                job.withdraw()


def _folder() -> Path:
    return private_folder() / "jobs"
