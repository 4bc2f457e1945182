"""The training side: the slack that training can afford, and signs that it diverges."""
