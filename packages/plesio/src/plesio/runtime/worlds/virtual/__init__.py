"""The virtual world: the same training code on workers that are not there, in virtual time, in one process.

Each worker is a thread with a session of its own; exactly one of them runs at a time (`scheduler`), and who is next
follows from modelled computing and communication times (`plesio.sim`). The servers are the same `JobServer` as on real
sockets, at the end of modelled links (`fabric`, `connections`); collectives add the ranks' tensors up in this process
(`group`). `simulation.simulate` puts them together.
"""

from plesio.runtime.worlds.virtual.simulation import Simulation, SimulationProgress, simulate

__all__ = ["Simulation", "SimulationProgress", "simulate"]
