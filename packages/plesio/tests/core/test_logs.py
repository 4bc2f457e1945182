"""Lines on standard error: warnings by default, more by PLESIO_LOG, none in a program that logs by itself."""

import os
import subprocess
import sys

import pytest

SAYS = """
import logging, threading
{before}
from plesio.core.logs import at_clock, set_up_logging, speak_as
set_up_logging()
set_up_logging()
log = logging.getLogger("plesio.runtime.worker.session")

def work(rank):
    speak_as(f"worker {{rank}}")
    at_clock(10 + rank)
    log.warning("%d of %d", rank, 2)
    log.debug("in detail")

for rank in (0, 1):
    thread = threading.Thread(target=work, args=(rank,))
    thread.start()
    thread.join()
log.warning("by nobody")
"""


def said(level: str | None, *, before: str = "") -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PLESIO_LOG"}
    if level is not None:
        environment["PLESIO_LOG"] = level
    done = subprocess.run(
        [sys.executable, "-c", SAYS.format(before=before)], capture_output=True, text=True, env=environment, check=False
    )
    return done.stderr.splitlines()


def test_warnings_alone_by_default():
    assert said(None) == ["plesio: worker 0: 0 of 2", "plesio: worker 1: 1 of 2", "plesio: by nobody"]


def test_all_of_it_with_rank_and_clock():
    lines = said("debug")
    assert len(lines) == 5
    first, second = lines[:2]
    assert first.endswith("worker 0 clock 10 plesio.runtime.worker.session: 0 of 2")
    assert second.endswith("worker 0 clock 10 plesio.runtime.worker.session: in detail")
    assert lines[-1].endswith(" plesio.runtime.worker.session: by nobody")
    assert "worker " not in lines[-1]


def test_less_on_request():
    assert said("error") == []


def test_a_program_with_logging_of_its_own_keeps_it():
    lines = said(None, before='logging.basicConfig(format="mine %(name)s %(message)s")')
    assert lines[0] == "mine plesio.runtime.worker.session 0 of 2"


@pytest.mark.parametrize("level", ["loud", "DEBUG"])
def test_an_unknown_level_is_refused_in_a_line(level: str):
    assert said(level)[-1] == (
        f'plesio.core.errors.ConfigError: PLESIO_LOG is "{level}"; write debug, info, warning or error'
    )
