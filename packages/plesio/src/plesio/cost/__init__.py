"""What things cost: clusters, collectives, computing. Formulas with their sources; no torch."""
