"""The source of a job's secret: the environment, or a key that only this user of this host can read.

The job's key-value store is no place for it: everybody who reaches its port can read it. Launchers put the secret into
the environment of the workers that they start, which other users cannot see. Without one, as under plain torchrun, the
processes of one host derive it from the name of the job and from a key in a file of the user's: 256 random bits in a
folder that nobody else may enter, made by the first process and used from then on. Nothing is left behind by a job that
is killed, and two jobs have different secrets.

Several hosts have no such file in common, so there the user must bring the secret, or say that it may be published.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from plesio.core.errors import ConfigError

SECRET_VARIABLE = "PLESIO_SECRET"
"""The job's secret, the same for all its processes; launchers set it."""

PUBLISH_VARIABLE = "PLESIO_INSECURE_PUBLISH_SECRET"
"""``1``: the secret lies in the job's key-value store, and whoever reaches MASTER_PORT is a member of the job."""

_LEAST_CHARACTERS = 32
_KEY_DIGITS = 64


def new_job_secret() -> str:
    """Return a fresh secret with 256 random bits; give it to the job's processes and to nobody else."""
    return secrets.token_hex(_KEY_DIGITS // 2)


def given_secret(environ: Mapping[str, str] = os.environ, *, num_hosts: int = 1) -> str | None:
    """Return the secret that the environment has, if it has one; several hosts have no other in common.

    Raises:
        ConfigError: It is short enough to be guessed, or there is none and must be one.
    """
    secret = environ.get(SECRET_VARIABLE)
    if secret is not None and len(secret) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"{SECRET_VARIABLE} has {len(secret)} characters where {_LEAST_CHARACTERS} or more are due; "
            "make one with: openssl rand -hex 32"
        )
    if secret is None and num_hosts > 1 and not may_publish(environ):
        raise ConfigError(
            f"a job on {num_hosts} hosts needs a secret: set {SECRET_VARIABLE} to the same text on all of them "
            f"(openssl rand -hex 32), or {PUBLISH_VARIABLE}=1 on a network where everybody may join the job"
        )
    return secret


def signed(text: str, *, secret: str, job: str) -> str:
    """Sign ``text`` with the proof that it comes from a holder of the secret, and is of this job."""
    key = hashlib.blake2b(secret.encode(), digest_size=32, person=b"plesio signature").digest()
    return f"{text} {hashlib.blake2b(f'{job} {text}'.encode(), key=key, digest_size=32).hexdigest()}"


def unsigned(line: str, *, secret: str, job: str) -> str | None:
    """Return the text that `signed` was given; None if it was not given this one."""
    text = line.rpartition(" ")[0]
    return text if hmac.compare_digest(line, signed(text, secret=secret, job=job)) else None


def may_publish(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the user lets everybody who reaches the job's key-value store have the secret."""
    return environ.get(PUBLISH_VARIABLE) == "1"


def secret_of_user(job: str) -> str:
    """Return the secret of a job of this user on this one host; the same for all who ask for the same ``job``.

    Args:
        job: A text that no other job has; it need not be secret.

    Raises:
        ConfigError: There is no folder for the key that others could not read or have made.
    """
    try:
        key = _user_key(private_folder() / "key")
    except OSError as error:
        raise ConfigError(
            f"no key for this job: {error}; set XDG_RUNTIME_DIR to a folder of your own, or {SECRET_VARIABLE}"
        ) from error
    return hashlib.blake2b(job.encode(), key=key.encode(), digest_size=32, person=b"plesio job").hexdigest()


def private_folder() -> Path:
    """Make a folder that this user alone may enter."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "plesio" if runtime else Path(tempfile.gettempdir()) / f".plesio-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_owner(folder, os.lstat(folder), kind=stat.S_ISDIR)  # another user may have made it, or a link, in /tmp
    return folder


def _user_key(path: Path) -> str:
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_KEY_DIGITS // 2))
        try:
            with contextlib.suppress(FileExistsError):  # another process was quicker: its key it is
                os.link(draft, path)
        finally:
            draft.unlink()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="ascii") as file:
        _check_owner(path, os.fstat(file.fileno()), kind=stat.S_ISREG)
        key = file.read()
    if len(key) != _KEY_DIGITS:
        raise OSError(f'"{path}" is no key; remove it')
    return key


def _check_owner(path: Path, found: os.stat_result, *, kind: Callable[[int], bool]) -> None:
    if not kind(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f'"{path}" is not this user\'s alone')
