"""The training side: how much slack training can afford, and whether it diverges."""
