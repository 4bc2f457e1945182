"""What the workers' reports say, in figures."""
