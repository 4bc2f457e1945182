"""The planning wing: what a run takes and what limits it, by models, before anything trains.

`theory` has the bounds, `estimate` the time, memory and money of a training run, `studies` the system models, and
`measured` does what studies model, where this machine can. The runtime imports nothing of it; only `measured` imports
what trains.
"""
