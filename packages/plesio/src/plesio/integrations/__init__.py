"""Other frameworks on sessions: each module needs its framework, and is imported by its own name.

    plesio.integrations.accelerate      PlesioAccelerator
    plesio.integrations.transformers    PlesioTrainer
    plesio.integrations.lightning       PlesioStrategy, PlesioFabricStrategy
    plesio.integrations.ray             PlesioConfig

The first three keep their loop, their division of the data and their process group. So every worker takes equally many
steps, and whatever the framework does with all workers at once (metrics, logging, checkpoints) works under every
policy: the workers meet there. Its optimizer is the session's, and its model is the user's own, without a wrapper.

Ray Train starts the workers, and the loop is the user's own.
"""
