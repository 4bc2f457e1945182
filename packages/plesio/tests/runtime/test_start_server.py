"""A server that does not start is an error, not a wait."""

import subprocess
import sys

import pytest

from plesio.core.errors import TransportError
from plesio.runtime import start_server


def test_a_server_that_does_not_listen_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start_server, "START_S", 0.2)
    silent = [sys.executable, "-X", "faulthandler", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(silent, stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(TransportError, match=r"a server does not listen after 0\.2 s"):
            start_server.server_addresses(process)
        assert process.wait(20) < 0
