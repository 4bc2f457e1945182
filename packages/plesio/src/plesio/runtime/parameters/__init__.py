"""How a model's parameters and its optimizer are written down, for workers and servers alike."""
