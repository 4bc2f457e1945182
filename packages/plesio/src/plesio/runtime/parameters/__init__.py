"""How a model's parameters and its optimizer are written down, for workers and servers alike."""

from plesio.runtime.parameters.blocks import TensorBlock

__all__ = ["TensorBlock"]
