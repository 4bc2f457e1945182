"""Characterisations: what was measured in many settings, what may be claimed of it, and a paper's tables beside it."""

from plesio.report.characterisation.charts import (
    accuracy_chart,
    factor_charts,
    paper_charts,
    pareto_chart,
    pareto_front,
    speed_up_chart,
)
from plesio.report.characterisation.page import (
    OUTPUT_NAMES,
    characterisation_sentences,
    characterisation_values,
    render_characterisation,
    write_characterisation,
)
from plesio.report.characterisation.summary import (
    Characterisation,
    Claim,
    overloads,
    regained,
    summarise_characterisation,
)
from plesio.report.characterisation.tables import claims_tables, paper_tables, scaling_table

__all__ = [
    "OUTPUT_NAMES",
    "Characterisation",
    "Claim",
    "accuracy_chart",
    "characterisation_sentences",
    "characterisation_values",
    "claims_tables",
    "factor_charts",
    "overloads",
    "paper_charts",
    "paper_tables",
    "pareto_chart",
    "pareto_front",
    "regained",
    "render_characterisation",
    "scaling_table",
    "speed_up_chart",
    "summarise_characterisation",
    "write_characterisation",
]
