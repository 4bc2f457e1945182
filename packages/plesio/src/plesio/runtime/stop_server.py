"""Ends a server that this process has started."""

import contextlib
import subprocess

__all__ = ["stop_server"]

SERVER_STOP_S = 10.0


def stop_server(process: subprocess.Popen[str]) -> None:
    """Ask it to end, and kill it when it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended by itself
        process.stdin.write("over\n")
        process.stdin.close()
    try:
        process.wait(SERVER_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
