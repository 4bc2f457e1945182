import io
import re

from rich.console import Console

from plesio.core.predictions import Prediction
from plesio.report.charts import draw_figure
from plesio.report.validation import predictions_chart, render_validation, render_validation_page
from support.narrow import WIDTH, too_long


def predictions() -> list[Prediction]:
    rows = []
    for task in ("digits", "<b>bold</b>"):
        for policy, predicted, measured in (("bsp", 1000.0, 1010.0), ("asp", 3000.0, 2000.0)):
            setting = {"task": task, "step_time": "30 ms", "policy": policy}
            rows.append(
                Prediction(
                    setting=setting,
                    quantity="throughput",
                    scale="relative",
                    predicted=predicted,
                    measured=measured,
                    baseline=1500.0,
                )
            )
            rows.append(
                Prediction(
                    setting=setting, quantity="wait share", scale="points", predicted=0.0, measured=0.02, baseline=0.5
                )
            )
    return rows


def test_every_row_and_its_error_is_in_the_table():
    printed = io.StringIO()
    Console(width=160, file=printed).print(render_validation(predictions()))
    text = printed.getvalue()
    assert len(re.findall(r"throughput", text)) == 5  # four rows and their summary
    assert "+50.0 %" in text  # a prediction that missed
    assert "-2.0 points" in text
    assert re.search(r"throughput +4 +25\.5 % +25\.5 % +50\.0 %", text)


def test_the_tables_fit_80_columns():
    printed = io.StringIO()
    Console(width=WIDTH, file=printed).print(render_validation(predictions()))
    assert too_long(printed.getvalue()) == []
    assert "+50.0 %" in printed.getvalue()


def test_the_page_is_self_contained_and_escaped():
    page = render_validation_page(predictions())
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "+50.0&nbsp;%" in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "<b>bold" not in text
    assert not re.search(r'(?:src|href)="', text)
    assert "$" not in text


def test_points_of_predictions_and_baseline_are_drawn_beside_the_band():
    figure = draw_figure(predictions_chart(predictions()))
    marks = [trace for trace in figure.data if trace.mode == "markers" and trace.x[0] is not None]
    hollow = [trace for trace in marks if str(trace.marker.symbol).endswith("-open")]
    assert len(marks) == 16
    assert len(hollow) == 8
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    high, low = bands[0].y[0] / bands[0].x[0], bands[0].y[3] / bands[0].x[3]
    assert (round(low, 6), round(high, 6)) == (0.9, 1.1)
