import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError, TransportError
from plesio.runtime import worker_output
from plesio.runtime.job_store import listen
from plesio.runtime.launcher import JoinDefaults, launch
from plesio.runtime.supervisor import WorkerCommand, supervise
from plesio.runtime.worker_output import Output, Screen

DEADLINE_S = 60.0

WAITING = """
    import os, pathlib, signal, sys, time
    def wait_until(holds):
        while not holds():
            time.sleep(0.005)
    def gone(name):
        path = pathlib.Path(name)
        wait_until(lambda: path.exists() and path.read_text())
        wait_until(lambda: not pathlib.Path("/proc", path.read_text()).exists())
    rank = int(os.environ["RANK"])
"""


def write_script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(WAITING) + textwrap.dedent(text))
    return path


def wait_until_ended(pid: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":  # dead; whoever adopted it has not waited for it yet
            return
        time.sleep(0.005)
    raise AssertionError(f"process {pid} is still there")


@contextmanager
def supervised(script: Path, *, num_workers: int, grace_s: float = 10.0) -> Iterator[subprocess.Popen[str]]:
    """A supervisor in a process of its own, without torch: signals can be sent to it."""
    code = f"""
import os, sys
from plesio.runtime.supervisor import WorkerCommand, supervise
commands = [WorkerCommand(rank=rank, argv=[sys.executable, "-u", {str(script)!r}],
                          environment={{**os.environ, "RANK": str(rank)}}) for rank in range({num_workers})]
sys.exit(supervise(commands, prepare=lambda: None, grace_s={grace_s}).status)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=script.parent
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_pids(process: subprocess.Popen[str], *, num: int) -> list[int]:
    """The numbers that ``num`` workers print when they are ready."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(num)]


def test_workers_get_torchruns_variables_and_their_arguments(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = write_script(
        tmp_path,
        """
        import json
        before = json.loads(sys.argv[1])
        print(json.dumps({key: value for key, value in os.environ.items() if before.get(key) != value}))
        print("and", sys.argv[2:], file=sys.stderr)
        """,
    )
    arguments = [json.dumps(dict(os.environ)), "--lr", "0.1"]
    assert launch(script, arguments, num_workers=2, defaults=JoinDefaults(policy="SSP:4")) == 0
    out, err = capfd.readouterr()
    found = {line[:4]: json.loads(line[4:]) for line in out.splitlines()}
    assert sorted(found) == ["[0] ", "[1] "]
    assert len({variables.pop("PLESIO_SECRET") for variables in found.values()}) == 1
    port = found["[0] "].pop("MASTER_PORT")
    assert found["[1] "].pop("MASTER_PORT") == port
    for rank in (0, 1):
        variables = found[f"[{rank}] "]
        variables.pop("LC_CTYPE", None)  # Python's own, in the C locale
        assert re.fullmatch(r"\d+:\d+", variables.pop("PLESIO_SUPERVISOR"))
        assert variables == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            "PLESIO_POLICY": "ssp:4",
            **({} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}),
        }
        assert f"[{rank}] and ['--lr', '0.1']\n" in err
    assert f"plesio run --join 127.0.0.1:{port} --policy ssp:4 {script}" in err


@pytest.mark.slow  # cli/test_grid.py has workers that meet there
def test_torch_finds_the_store_that_the_launcher_hosts(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = write_script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        print("sum", total.item())
        dist.destroy_process_group()
        """,
    )
    assert launch(script, num_workers=2) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] sum 3", "[1] sum 3"]


def test_long_lines_and_a_last_line_without_an_end_come_through(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = write_script(tmp_path, 'print("x" * 50_000); print("last words", end="")')
    assert launch(script, num_workers=1) == 0
    assert capfd.readouterr().out.splitlines() == ["[0] " + "x" * 50_000, "[0] last words"]


def test_the_others_go_on_when_one_fails_and_the_first_failure_is_the_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    script = write_script(
        tmp_path,
        """
        if rank == 1:
            pathlib.Path("first").write_text(str(os.getpid()))
            sys.exit(3)
        gone("first")
        print("goes on")
        sys.exit(4 if rank == 0 else 0)
        """,
    )
    assert launch(script, num_workers=3) == 3
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] goes on", "[2] goes on"]
    assert "plesio: rank 1 ended with status 3; 2 of 3 go on\n" in err
    assert "plesio: rank 0 ended with status 4" in err


def test_those_that_go_on_are_counted_among_the_places_and_not_those_that_were_started_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    script = write_script(
        tmp_path,
        """
        if rank == 0:
            gone("2")
        else:
            pathlib.Path(str(rank)).write_text(str(os.getpid()))
            sys.exit(3)
        """,
    )

    def command(rank: int, worker: int) -> WorkerCommand:
        environment = {**os.environ, "RANK": str(rank)}
        return WorkerCommand(rank=rank, argv=[sys.executable, str(script)], environment=environment, worker=worker)

    started_again = iter([[command(2, 1)], []])
    supervise([command(0, 0), command(1, 1)], prepare=lambda: None, again=lambda worker: next(started_again))
    lines = [f"plesio: rank {rank} ended with status 3; 1 of 2 go on" for rank in (1, 2)]
    assert capfd.readouterr().err.splitlines() == lines


def test_a_killed_worker_is_named_with_its_signal(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert launch(write_script(tmp_path, "os.kill(os.getpid(), 9)"), num_workers=1) == 128 + signal.SIGKILL
    assert "plesio: rank 0 was killed by SIGKILL\n" in capfd.readouterr().err


def test_workers_end_and_signals_mean_what_they_did_when_the_start_fails(tmp_path: Path):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    script = write_script(tmp_path, "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); signal.pause()")
    pid_path = tmp_path / "pid"

    def fail() -> None:
        while not (pid_path.exists() and pid_path.read_text()):
            time.sleep(0.005)
        raise TransportError("no store")

    environment = {**os.environ, "RANK": "0"}
    command = WorkerCommand(rank=0, argv=[sys.executable, str(script), str(pid_path)], environment=environment)
    with pytest.raises(TransportError, match="no store"):
        supervise([command], prepare=fail)
    wait_until_ended(int(pid_path.read_text()))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_what_a_worker_started_ends_with_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = write_script(tmp_path, 'import subprocess; print(subprocess.Popen(["sleep", "1000"]).pid); os._exit(0)')
    assert launch(script, num_workers=1) == 0
    wait_until_ended(int(capfd.readouterr().out.split()[-1]))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_reaches_every_worker_and_is_the_status(tmp_path: Path, number: int, status: int):
    script = write_script(
        tmp_path,
        f"""
        import signal
        def stopped(number, frame):
            print("heard", flush=True)
            sys.exit(0)
        signal.signal({int(number)}, stopped)
        print(os.getpid())
        while True:
            signal.pause()
        """,
    )
    with supervised(script, num_workers=2) as process:
        pids = read_pids(process, num=2)
        process.send_signal(number)
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == status
        assert sorted(out.splitlines()) == ["[0] heard", "[1] heard"]
        for pid in pids:
            wait_until_ended(pid)


STUBBORN = """
    import signal
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: print("no", flush=True))
    print(os.getpid())
    while True:
        signal.pause()
"""


def test_a_worker_that_will_not_stop_is_killed_after_the_grace(tmp_path: Path):
    with supervised(write_script(tmp_path, STUBBORN), num_workers=1, grace_s=0.3) as process:
        (pid,) = read_pids(process, num=1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert out.splitlines() == ["[0] no", "[0] no"]
        assert "rank 0 did not stop and is killed" in err
        wait_until_ended(pid)


def test_a_worker_that_stays_stopped_is_killed_when_the_others_have_ended(tmp_path: Path):
    script = write_script(tmp_path, "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)")
    with supervised(script, num_workers=2, grace_s=0.2) as launcher:
        _, errors = launcher.communicate(timeout=DEADLINE_S)
    assert "rank 1 is stopped (SIGSTOP) and the others have ended: it is killed" in errors
    assert launcher.returncode == 128 + signal.SIGKILL


def test_a_job_that_is_stopped_as_a_whole_for_a_while_goes_on(tmp_path: Path):
    script = write_script(
        tmp_path,
        """
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
        if rank == 0:
            sys.exit(3)
        print(os.getpid(), flush=True)
        while True:
            signal.pause()
        """,
    )
    grace_s = 3.0
    with supervised(script, num_workers=2, grace_s=grace_s) as launcher:
        assert launcher.stderr is not None
        assert "rank 0 ended with status 3; 1 of 2 go on" in launcher.stderr.readline()
        (pid,) = read_pids(launcher, num=1)
        os.kill(pid, signal.SIGSTOP)
        os.kill(launcher.pid, signal.SIGSTOP)
        time.sleep(grace_s)  # the time to look at the worker has come when the launcher goes on
        os.kill(launcher.pid, signal.SIGCONT)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGUSR1)
        _, errors = launcher.communicate(timeout=DEADLINE_S)
    assert "SIGSTOP" not in errors
    assert launcher.returncode == 3


def test_asking_again_does_not_wait_for_the_grace(tmp_path: Path):
    with supervised(write_script(tmp_path, STUBBORN), num_workers=1, grace_s=1000.0) as process:
        read_pids(process, num=1)
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "[0] no\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "[0] no\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130


def test_the_kernel_ends_the_workers_of_a_killed_launcher(tmp_path: Path):
    with supervised(write_script(tmp_path, STUBBORN), num_workers=2) as process:
        pids = read_pids(process, num=2)
        process.kill()
        process.wait(timeout=DEADLINE_S)
        for pid in pids:
            wait_until_ended(pid)


def test_workers_end_when_nobody_reads_their_output_any_more(tmp_path: Path):
    script = write_script(tmp_path, 'print(os.getpid())\nwhile True: print("x" * 1000)')
    with supervised(script, num_workers=1) as process:
        (pid,) = read_pids(process, num=1)
        assert process.stdout is not None
        process.stdout.close()
        wait_until_ended(pid)
        process.stdout = None
        process.wait(timeout=DEADLINE_S)


def test_workers_join_a_running_job(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    script = write_script(
        tmp_path,
        """
        print("rank", rank, "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_PORT"])
        if rank < 2:
            wait_until(lambda: all(pathlib.Path(f"joined{number}").exists() for number in (2, 3, 4)))
        else:
            pathlib.Path(f"joined{rank}").touch()
        """,
    )
    code = f"""
import pathlib, sys
from plesio.runtime.launcher import launch
from plesio.runtime.supervisor import WorkerCommand, supervise
sys.exit(launch(pathlib.Path({str(script)!r}), num_workers=2))
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as host:
        try:
            assert host.stderr is not None
            found = re.search(r"--join (127\.0\.0\.1:(\d+)) ", host.stderr.readline())
            assert found is not None
            assert launch(script, num_workers=1, join=found[1]) == 0
            assert launch(script, num_workers=2, join=found[1]) == 0
            assert host.wait(timeout=DEADLINE_S) == 0
        finally:
            host.kill()
    out, err = capfd.readouterr()
    assert {f"[{rank}] rank {rank} of 2 at {found[2]}" for rank in (2, 3, 4)} <= set(out.splitlines())
    assert f"joined {found[1]} as rank 2\n" in err
    assert f"joined {found[1]} as ranks 3 to 4\n" in err


def test_mistakes_are_reported_before_anything_starts(tmp_path: Path):
    script = write_script(tmp_path, "")
    with pytest.raises(ConfigError, match=r"there is no script .*none\.py$"):
        launch(tmp_path / "none.py", num_workers=1)
    with pytest.raises(ConfigError, match="it is a folder"):
        launch(tmp_path, num_workers=1)
    with pytest.raises(ConfigError, match="--workers 0: write 1 or more"):
        launch(script, num_workers=0)
    for address in ("127.0.0.1", ":1234", "host:", "host:port", "host:99999"):
        with pytest.raises(ConfigError, match="write HOST:PORT"):
            launch(script, num_workers=1, join=address)
    with pytest.raises(TransportError, match="cannot listen on port 99999"):
        launch(script, num_workers=1, port=99999)


def test_a_port_in_use_is_refused(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"cannot listen on port {port}: Address already in use; leave --port"):
            launch(write_script(tmp_path, ""), num_workers=1, port=port)


def test_joining_where_no_job_runs_is_refused(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TransportError, match=f"cannot join 127.0.0.1:{port}: Connection refused"):
        launch(write_script(tmp_path, ""), num_workers=1, join=f"127.0.0.1:{port}")


def test_joining_what_is_no_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plesio.runtime.job_store._JOIN_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TransportError, match=f"cannot join 127.0.0.1:{port}: no job of Plesio answers there"):
            launch(write_script(tmp_path, ""), num_workers=1, join=f"127.0.0.1:{port}")
    for thread in threading.enumerate():  # its connection is gone, so it ends
        if thread.name == "plesio-store":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def test_a_progress_bar_moves_before_its_line_has_an_end(tmp_path: Path):
    script = write_script(
        tmp_path,
        """
        sys.stderr.write("\\r 10%"); sys.stderr.flush()
        wait_until(pathlib.Path("seen").exists)
        print("whole line")
        wait_until(pathlib.Path("done").exists)
        sys.stderr.write("\\r100%\\n")
        """,
    )
    with supervised(script, num_workers=1) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.read(9) == "\n[0]  10%"  # universal newlines: the return comes as one
        (tmp_path / "seen").touch()
        assert process.stdout.readline() == "[0] whole line\n"
        (tmp_path / "done").touch()
        assert process.stderr.read() == "\n\n[0]  10%\n[0] 100%\n", (
            "the bar's line has ended before the other stream's began"
        )


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([b"plain\n"], [b"1 plain\n"]),
        ([b"dos\r\n"], [b"1 dos\n"]),
        ([b"10%\r", b"20%\r", b"\n"], [b"1 10%", b"\r1 20%", b"\n"]),
        ([b"\r10%|#", b"#|", b"\r20%\nnext\n"], [b"\r1 10%|#", b"\r1 10%|##|", b"\r1 10%|##|\r1 20%\n1 next\n"]),
        ([b"no end"], []),
    ],
)
def test_returns_are_passed_on_at_once_with_the_rank_behind_each(chunks: list[bytes], shown: list[bytes]):
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    written: list[bytes] = []

    class Sink(io.BytesIO):
        def write(self, data: Any) -> int:
            written.append(data)
            return len(data)

    with os.fdopen(reader, "rb", 0) as pipe, os.fdopen(writer, "wb", 0) as worker:
        output = Output(pipe, b"1 ", Sink())
        for chunk in chunks:
            worker.write(chunk)
            assert output.forward()
        assert written == shown


CHAINED = (
    "\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
)


@pytest.mark.parametrize(
    "error", ["KeyboardInterrupt", f"KeyboardInterrupt{CHAINED}  File\nImportError: half", "ValueError: own"]
)
@pytest.mark.parametrize("before", ["", "Exception ignored in atexit callback: <function f at 0x7f>\n"])
def test_a_traceback_of_ctrl_c_in_an_import_or_at_the_end_is_not_shown_and_another_is(before: str, error: str):
    reader, writer = os.pipe()
    shown = io.BytesIO()
    shown.isatty = lambda: False  # type: ignore[method-assign]
    trace = f"before\n{before}Traceback (most recent call last):\n  File\n    import torch\n{error}\nafter\n"
    with os.fdopen(reader, "rb", 0) as pipe, os.fdopen(writer, "wb", 0) as worker:
        worker.write(trace.encode())
        worker.close()
        assert not Output(pipe, b"", shown, Screen(stopping=True)).forward()
    assert shown.getvalue().decode() == ("before\nafter\n" if error.startswith("KeyboardInterrupt") else trace)


MISTAKEN = """
    import plesio, signal
    if sys.argv[1] == "mistake":
        plesio.parse_policy("spp")
    if sys.argv[1] == "own" and rank:
        raise ZeroDivisionError("mine")
    if sys.argv[1] == "interrupted":
        signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("what", "status", "lines"),
    [
        ("mistake", 2, [r'plesio: error: unknown policy "spp"; did you mean "ssp"\? \(ranks 0, 1, 2\)']),
        (
            "own",
            1,
            ["Traceback .*", " .*", " .*", "ZeroDivisionError: mine", "plesio: ranks 1, 2 ended with this error"],
        ),
        ("interrupted", 130, [r"plesio: rank \d was killed by SIGINT(; \d of 3 go on)?"] * 3),
    ],
)
def test_an_error_of_several_workers_is_printed_once(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    status: int,
    lines: list[str],
):
    monkeypatch.setattr(worker_output, "_TOGETHER_S", DEADLINE_S)
    script = write_script(tmp_path, MISTAKEN)
    assert launch(script, [what], num_workers=3) == status
    begun, *found = capfd.readouterr().err.splitlines()
    assert re.fullmatch(rf"plesio: 3 workers; more can join with: plesio run --join \S+ {script} {what}", begun)
    found = [line for line in found if not re.fullmatch(r" *[\^~]+ *", line)]
    assert len(found) == len(lines), found
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(lines, found, strict=True)), found


@pytest.mark.parametrize(
    ("environment", "num_workers", "line"),
    [
        ({"REPLICAS": "2", "POLICY": "asp"}, 2, "--policy asp --replicas 2"),
        ({"POLICY": "asp", "ISLAND": "2,1"}, 3, "--policy asp --workers 2 --island 2"),
        ({"CHECKPOINT": "/c", "CHECKPOINT_EVERY": "5 s"}, 2, "--checkpoint /c --every '5 s'"),
        ({"POLICY": "hier:bsp/ssp:2"}, 2, None),
        ({"POLICY": "diloco:8", "ISLAND": "1"}, 2, None),
    ],
)
def test_the_line_to_join_by_has_the_options_of_all_workers_or_is_left_out(
    environment: dict[str, str],
    num_workers: int,
    line: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    for name, value in environment.items():
        monkeypatch.setenv(f"PLESIO_{name}", value)
    script = write_script(tmp_path, "")
    launch(script, num_workers=num_workers)
    join = re.search(r"more can join with: plesio run --join \S+ (.*)", capfd.readouterr().err)
    assert (join and join[1]) == (line and f"{line} {script}")


def test_none_joins_a_worker_that_trains_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = write_script(tmp_path, "if rank == 0: wait_until(pathlib.Path('done').exists)")
    with listen(0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "plesio", "run", "--port", str(port), str(script)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as host:
        try:
            assert host.stderr is not None
            assert host.stderr.readline() == "plesio: 1 worker\n"
            with pytest.raises(ConfigError, match="one worker trains there, alone; start its job with --workers 2"):
                launch(script, join=f"127.0.0.1:{port}")
            (tmp_path / "done").touch()
            assert host.wait(timeout=DEADLINE_S) == 0
        finally:
            host.kill()


def test_a_script_that_never_joins_is_told_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert launch(write_script(tmp_path, ""), num_workers=2) == 0
    assert "called no plesio.join (nor torch.distributed): 2 copies of it have run" in capfd.readouterr().err


def test_whoever_waits_for_a_worker_that_has_ended_hears_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = write_script(
        tmp_path,
        """
        if rank == 0:
            sys.exit(0)
        from plesio.runtime.job import Job
        from plesio.runtime.worker.environment import WorkerPlace
        Job(WorkerPlace.from_environment(), meet_s=3600)
        """,
    )
    assert launch(script, num_workers=2) == 2
    assert "plesio: error: worker 0 ended before it joined (rank 1)" in capfd.readouterr().err


@pytest.mark.parametrize(("forged", "status"), [(True, 3), pytest.param(False, 0, marks=pytest.mark.slow)])
def test_only_a_member_says_that_others_have_finished_the_run(tmp_path: Path, forged: bool, status: int):
    script = write_script(
        tmp_path,
        f"""
        if rank == 1:
            sys.exit(3)
        from torch.distributed import TCPStore
        from plesio.runtime.worker.environment import FINISHED_WITHOUT_KEY, NAME_KEY
        from plesio.runtime.transport.job_secret import signed
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        secret = "a stranger's" if {forged} else os.environ["PLESIO_SECRET"]
        store.set(FINISHED_WITHOUT_KEY, signed("1", secret=secret, job=store.get(NAME_KEY).decode()))
        """,
    )
    assert launch(script, num_workers=2) == status
