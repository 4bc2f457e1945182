"""Estimates of a training run on given hardware: time, memory, money, energy."""

from plesio_planning.estimate.capacity import check_memory
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.exports import FORMATS, import_run
from plesio_planning.estimate.hardware import ACCELERATORS, Accelerator, Machine, find_accelerator, parse_machine
from plesio_planning.estimate.hugging_face import read_hugging_face
from plesio_planning.estimate.layout import SOFTWARE, Layout, Software, check_layout
from plesio_planning.estimate.memory import Memory, estimate_memory
from plesio_planning.estimate.model import Convolutional, Model, Transformer
from plesio_planning.estimate.named_models import MODELS, find_model
from plesio_planning.estimate.own_constants import OwnConstants, calibrate_to
from plesio_planning.estimate.own_steps import read_own_steps
from plesio_planning.estimate.plans import RunPlans, find_plans
from plesio_planning.estimate.run_plan import Limits, RunPlan
from plesio_planning.estimate.search import Search, search_layouts
from plesio_planning.estimate.sites import RunOverSites, Sites, extra_tokens, loss_penalty, run_over_sites
from plesio_planning.estimate.step import Step, estimate_step
from plesio_planning.estimate.training import Conditions, Training, estimate_training
from plesio_planning.estimate.validation import validate_estimator

__all__ = [
    "ACCELERATORS",
    "CONSTANTS",
    "FORMATS",
    "MODELS",
    "SOFTWARE",
    "Accelerator",
    "Conditions",
    "Constants",
    "Convolutional",
    "Layout",
    "Limits",
    "Machine",
    "Memory",
    "Model",
    "OwnConstants",
    "RunOverSites",
    "RunPlan",
    "RunPlans",
    "Search",
    "Sites",
    "Software",
    "Step",
    "Training",
    "Transformer",
    "calibrate_to",
    "check_layout",
    "check_memory",
    "estimate_memory",
    "estimate_step",
    "estimate_training",
    "extra_tokens",
    "find_accelerator",
    "find_model",
    "find_plans",
    "import_run",
    "loss_penalty",
    "parse_machine",
    "read_hugging_face",
    "read_own_steps",
    "run_over_sites",
    "search_layouts",
    "validate_estimator",
]
