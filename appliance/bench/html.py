"""The HTML report of one or more results: figures, plots, and what was measured. One file, no outside resource."""

from collections.abc import Sequence
from html import escape
from itertools import accumulate

import msgspec

from appliance.bench.plot import Points, cumulative, line_chart
from appliance.bench.record import MeasuredRequest
from appliance.bench.result import FIGURES, BenchResult
from appliance.bench.text import unit_of

_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}
.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 480px}
svg{width:100%;height:auto}text{fill:currentColor;font-size:11px}.title{font-size:13px;font-weight:600}
.grid{stroke:#8884}.tick{opacity:.75}.end{text-anchor:end}.middle{text-anchor:middle}.key{text-anchor:end}
pre{overflow:auto;background:#8881;padding:1rem}
"""


def render_html(results: Sequence[BenchResult]) -> str:
    body = "".join(_section(result) for result in results)
    title = ", ".join(dict.fromkeys(result.scenario.name for result in results))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>Benchmark report</h1>{body}</html>"
    )


def _section(result: BenchResult) -> str:
    about = msgspec.json.format(
        msgspec.json.encode(
            {
                "scenario": result.scenario,
                "spec_sha256": result.spec_sha256,
                "engine_sha256": result.engine_sha256,
                "lock_sha256": result.lock_sha256,
                "machine": result.machine,
                "slo": result.slo,
            }
        ),
        indent=2,
    ).decode()
    return (
        f"<h2>{escape(result.label)}: {escape(result.scenario.name)}</h2>"
        f"<p>{escape(result.model)} at {escape(result.target)}, {escape(result.time)}, appliance "
        f"{escape(result.appliance_version)}, {len(result.rounds)} rounds.</p>{_table(result)}"
        f'<div class="plots">{_plots(result)}</div><details><summary>What was measured</summary>'
        f"<pre>{escape(about)}</pre></details>"
    )


def _table(result: BenchResult) -> str:
    rows = []
    for name, _ in FIGURES:
        if name in result.figures:
            unit, factor = unit_of(name)
            spread = result.figures[name]
            cells = "".join(f"<td>{value * factor:.2f}</td>" for value in (spread.median, spread.min, spread.max))
            rows.append(f"<tr><td>{name} ({unit})</td>{cells}</tr>")
    return f"<table><tr><th>figure</th><th>median</th><th>min</th><th>max</th></tr>{''.join(rows)}</table>"


def _plots(result: BenchResult) -> str:
    done = [record for record in result.records if record.error is None]
    charts = [
        line_chart("End-to-end latency", "ms", "% of requests", {"E2EL": cumulative([r.e2el * 1e3 for r in done])}),
        line_chart("Requests in flight", "s", "requests", {"running": _in_flight(done)}),
    ]
    if result.scenario.task in ("auto", "generate"):
        return "".join([*_plots_of_output([record for record in done if record.token_times]), *charts])
    read = [(record.finished, record.input_tokens) for record in done]
    return "".join([*charts, line_chart("Input over time", "s", "tokens a second", {"input": _rate(done, read)})])


def _plots_of_output(streamed: Sequence[MeasuredRequest]) -> list[str]:
    arrivals = [pair for r in streamed for pair in zip(r.token_times, r.token_counts, strict=True)]
    return [
        line_chart(
            "Time to first token", "ms", "% of requests", {"TTFT": cumulative([r.ttft * 1e3 for r in streamed])}
        ),
        line_chart(
            "Inter-token latency",
            "ms",
            "% of gaps",
            {"ITL": cumulative([gap * 1e3 for r in streamed for gap in r.itl])},
        ),
        line_chart("Output over time", "s", "tokens a second", {"output": _rate(streamed, arrivals)}),
    ]


def _rate(records: Sequence[MeasuredRequest], arrivals: Sequence[tuple[float, int]], bins: int = 60) -> Points:
    """arrivals: times, and the tokens that came then."""
    if len(arrivals) < 2:
        return []
    start, end = min(r.started for r in records), max(time for time, _ in arrivals)
    width = max(end - start, 1e-6) / bins
    totals = [0] * bins
    for time, count in arrivals:
        totals[min(int((time - start) / width), bins - 1)] += count
    return [((index + 0.5) * width, total / width) for index, total in enumerate(totals)]


def _in_flight(records: Sequence[MeasuredRequest]) -> Points:
    changes = sorted([(r.started, 1) for r in records] + [(r.finished, -1) for r in records])
    if not changes:
        return []
    start = changes[0][0]
    levels = accumulate(change for _, change in changes)
    return [(time - start, level) for (time, _), level in zip(changes, levels, strict=True)]
