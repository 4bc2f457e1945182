"""Other frameworks' loops on a session: each module needs its framework, and is imported by its own name.

    plesio.integrations.accelerate      PlesioAccelerator
    plesio.integrations.transformers    PlesioTrainer
    plesio.integrations.lightning       PlesioStrategy, PlesioFabricStrategy

The framework keeps its loop, its division of the data and its process group. So every worker takes equally many steps,
and whatever the framework does with all workers at once (metrics, logging, checkpoints) works under every policy: the
workers meet there. Its optimizer is the session's, and its model is the user's own, without a wrapper.
"""
