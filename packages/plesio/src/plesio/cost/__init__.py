"""The costs of training: clusters, collectives, computing. Formulas with their sources; no torch."""
