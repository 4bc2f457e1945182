"""What a training run takes on given hardware: time, memory, money, energy."""

from plesio.estimate.capacity import check_memory
from plesio.estimate.constants import CONSTANTS, Constants
from plesio.estimate.hardware import ACCELERATORS, Accelerator, Machine, find_accelerator, parse_machine
from plesio.estimate.layout import SOFTWARE, Layout, Software, check_layout
from plesio.estimate.memory import Memory, estimate_memory
from plesio.estimate.model import Convolutional, Model, Transformer
from plesio.estimate.named_models import MODELS, find_model, read_hugging_face
from plesio.estimate.search import Search, search_layouts
from plesio.estimate.step import Step, estimate_step
from plesio.estimate.training import Conditions, Training, estimate_training
from plesio.estimate.validation import validate_estimator

__all__ = [
    "ACCELERATORS",
    "CONSTANTS",
    "MODELS",
    "SOFTWARE",
    "Accelerator",
    "Conditions",
    "Constants",
    "Convolutional",
    "Layout",
    "Machine",
    "Memory",
    "Model",
    "Search",
    "Software",
    "Step",
    "Training",
    "Transformer",
    "check_layout",
    "check_memory",
    "estimate_memory",
    "estimate_step",
    "estimate_training",
    "find_accelerator",
    "find_model",
    "parse_machine",
    "read_hugging_face",
    "search_layouts",
    "validate_estimator",
]
