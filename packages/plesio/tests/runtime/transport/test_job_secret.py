import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plesio.core.errors import ConfigError
from plesio.runtime.transport.job_secret import given_secret, new_job_secret, secret_of_user


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_the_environment_s_secret_is_taken_and_one_that_can_be_guessed_is_not():
    secret = new_job_secret()
    assert given_secret({"PLESIO_SECRET": secret}) == secret
    assert given_secret({}) is None
    with pytest.raises(ConfigError, match="PLESIO_SECRET has 6 characters where 32 or more are due"):
        given_secret({"PLESIO_SECRET": "hunter"})


def test_several_hosts_need_a_secret_unless_the_user_says_that_everybody_may_join():
    with pytest.raises(ConfigError, match="a job on 2 hosts needs a secret: set PLESIO_SECRET") as raised:
        given_secret({}, num_hosts=2)
    assert "\n" not in str(raised.value)
    assert given_secret({"PLESIO_INSECURE_PUBLISH_SECRET": "1"}, num_hosts=2) is None
    assert given_secret({"PLESIO_SECRET": "x" * 32}, num_hosts=2) == "x" * 32


def test_a_user_s_processes_have_one_secret_for_a_job_and_another_for_the_next(runtime_folder: Path):
    with ThreadPoolExecutor(8) as pool:  # all come at once, and the key is not there yet
        secrets = set(pool.map(secret_of_user, 8 * ["a job"]))
    assert len(secrets) == 1
    assert secret_of_user("another job") not in secrets
    [key] = (runtime_folder / "plesio").iterdir()
    assert key.read_text(encoding="ascii") not in secrets
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def make_readable(folder: Path) -> None:
    (folder / "key").chmod(0o644)


def open_the_folder(folder: Path) -> None:
    folder.chmod(0o755)


def put_a_link(folder: Path) -> None:
    (folder / "key").rename(folder / "elsewhere")
    (folder / "key").symlink_to(folder / "elsewhere")


def give_away(folder: Path) -> None:
    os.chown(folder, 12345, 12345)


def cut_short(folder: Path) -> None:
    (folder / "key").write_text("short", encoding="ascii")


@pytest.mark.parametrize("change", [make_readable, open_the_folder, put_a_link, give_away, cut_short])
def test_a_key_that_others_could_have_read_or_made_is_refused_in_one_line(runtime_folder: Path, change: object):
    if change is give_away and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    secret_of_user("a job")
    change(runtime_folder / "plesio")
    with pytest.raises(ConfigError, match=r"no key for this job: .*set XDG_RUNTIME_DIR .* or PLESIO_SECRET") as raised:
        secret_of_user("a job")
    assert "\n" not in str(raised.value)


def test_without_a_runtime_folder_the_key_is_in_a_folder_of_the_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    secret_of_user("a job")
    [folder] = tmp_path.iterdir()
    assert folder.name == f".plesio-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
