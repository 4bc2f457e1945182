"""The page's style sheet."""

__all__ = ["STYLE"]

STYLE = """
:root {
  --ink: #1c2530; --quiet: #5d6875; --line: #dfe3e8; --paper: #ffffff; --card: #f7f8fa;
  --alert: #9a3412; --alert-paper: #fff4ec;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ed; --quiet: #9aa5b1; --line: #2f3741; --paper: #14181d; --card: #1b2027;
    --alert: #fdba74; --alert-paper: #2b1d12;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; color: var(--ink); background: var(--paper); line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
header, main { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; }
main { padding-bottom: 64px; }
h1 { font-size: 30px; line-height: 1.25; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 44px 0 12px; }
h3 { font-size: 16px; line-height: 1.35; margin: 0 0 10px; }
header p { margin: 0; color: var(--quiet); }
h1, h3, p, li { overflow-wrap: anywhere; }
.alerts { margin: 24px 0 0; padding: 12px 18px; border-left: 4px solid var(--alert); background: var(--alert-paper); }
.alerts p { margin: 2px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; font-variant-numeric: tabular-nums; }
th, td {
  text-align: right; vertical-align: top; padding: 8px 0 8px 16px; border-bottom: 1px solid var(--line);
  white-space: nowrap;
}
th:first-child, td:first-child {
  text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--paper);
}
thead th { font-weight: 600; font-size: 13px; color: var(--quiet); vertical-align: bottom; }
tbody th { font-weight: 600; white-space: normal; min-width: 130px; }
table.even { width: auto; }
.even th, .even td { min-width: 160px; }
td small, th small { display: block; color: var(--quiet); font-size: 12.5px; font-weight: 400; }
.note { color: var(--quiet); font-size: 13.5px; margin: 10px 0 0; }
.chip { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 8px; }
ul.sentences { list-style: none; padding: 0; margin: 0; }
ul.sentences li { display: flex; align-items: baseline; padding: 5px 0; }
ul.sentences .chip { flex: none; }
.figures { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 18px; }
figure {
  grid-column: span 3; margin: 0; padding: 18px 18px 14px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; display: flex; flex-direction: column; min-width: 0;
}
figure.wide { grid-column: 1 / -1; }
figure > div { flex: 1 0 auto; min-width: 0; }
figcaption { color: var(--quiet); font-size: 13.5px; margin-top: 10px; }
details { border-top: 1px solid var(--line); padding: 10px 0; }
summary { cursor: pointer; font-weight: 600; }
details > :not(summary) { margin-top: 10px; }
details table { font-size: 14px; }
td.text { text-align: left; white-space: normal; min-width: 200px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; font-size: 14px; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: 13px; margin: 4px 0; }
a { color: inherit; }
code { font-size: 0.92em; }
.js-plotly-plot text:not(.heatmap-label text, .bartext-inside) { fill: var(--ink) !important; }
.js-plotly-plot .hoverlayer text { fill: #ffffff !important; }
@media (max-width: 900px) { figure { grid-column: 1 / -1; } }
@media (max-width: 560px) {
  header, main { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 24px; }
  h1 { font-size: 24px; }
  figure { padding: 14px 10px 12px; }
  table.even { width: 100%; }
  .even th, .even td { min-width: 0; }
}
"""
