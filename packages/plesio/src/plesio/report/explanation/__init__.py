"""Runs whose policy changes while they train, explained: found, read, told, drawn, and rendered."""

from plesio.report.explanation.charts import explanation_charts, metric_chart
from plesio.report.explanation.explain import explanation_of
from plesio.report.explanation.model import Change, Chapter, ExplainedReview, Explanation, MeasuredOutcome
from plesio.report.explanation.page import render_explanation, render_explanation_page
from plesio.report.explanation.recorded import decision_sentences, recorded_changes
from plesio.report.explanation.runs import ChangingRuns, find_changing_runs
from plesio.report.explanation.sentences import closing_sentences, explanation_sentences, heading_text
from plesio.report.explanation.verdict import FEWEST_TO_SMOOTH, measured_table, metric_of, outcome_of, verdict_sentences

__all__ = [
    "FEWEST_TO_SMOOTH",
    "Change",
    "ChangingRuns",
    "Chapter",
    "ExplainedReview",
    "Explanation",
    "MeasuredOutcome",
    "closing_sentences",
    "decision_sentences",
    "explanation_charts",
    "explanation_of",
    "explanation_sentences",
    "find_changing_runs",
    "heading_text",
    "measured_table",
    "metric_chart",
    "metric_of",
    "outcome_of",
    "recorded_changes",
    "render_explanation",
    "render_explanation_page",
    "verdict_sentences",
]
