"""Commands to the kernel for links with latency, where it has netem: no kernel is needed to look at them."""

import pytest

from plesio.cost.link import Link
from plesio.testbed.network import Network


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    told: list[list[str]] = []
    monkeypatch.setattr("plesio.testbed.network.run_command", lambda *command: told.append(list(command)))
    monkeypatch.setattr("plesio.testbed.network.has_netem", lambda: True)
    return told


def test_netem_delays_what_the_near_end_sends_and_the_bucket_is_below_it(commands: list[list[str]]):
    far_away, near = Link(latency_s=5e-3, bytes_per_s=1e6), Link(latency_s=50e-6, bytes_per_s=1e6)
    network = Network([2], nics=[far_away, near], jitter_s=1e-3)
    network.make()
    first, second = (host.namespace for host in network.hosts)
    shaped = {(command[2], command[6]): command[7:] for command in commands if command[0] == "tc" and "tbf" in command}
    [delayed] = [command for command in commands if "netem" in command]
    assert delayed[2] == first
    assert delayed[7:14] == ["root", "handle", "1:", "netem", "delay", "5000us", "1000us"]
    assert shaped[first, "nic"][:5] == ["parent", "1:1", "handle", "10:", "tbf"]
    assert shaped[network.switches, "port0"][:2] == ["root", "tbf"]
    assert shaped[second, "nic"][:2] == ["root", "tbf"], "less than that is the machine's own"
    assert commands.index(delayed) < commands.index(
        ["tc", "-n", first, "qdisc", "add", "dev", "nic", *shaped[first, "nic"]]
    )
