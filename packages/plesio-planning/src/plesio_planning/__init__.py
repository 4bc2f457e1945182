"""Models of what a training run takes and what limits it, before anything trains.

`theory` has the bounds, `estimate` the time, memory and money of a training run, `studies` the system models, and
`measured` does what studies model, where this machine can. Only `measured` imports what trains, and `plesio` imports
nothing of this package: it finds the commands by their entry points.
"""
