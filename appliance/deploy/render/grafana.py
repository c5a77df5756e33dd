"""A Grafana dashboard of the deployment, with its declared targets as lines."""

import json
from typing import Any, Final

from appliance.deploy.render.names import dashboard_uid
from appliance.deploy.render.panels import PANELS, Panel
from appliance.deploy.render.workload import ServerWorkload

_SCHEMA: Final = 39  # of Grafana 10.4 and later
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def render(workload: ServerWorkload) -> dict[str, str]:
    dashboard = {
        "uid": dashboard_uid(workload.name),
        "title": f"appliance: {workload.name}",
        "tags": ["appliance"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(workload)},
        "panels": [_panel(panel, index, workload) for index, panel in enumerate(PANELS)],
    }
    return {f"{workload.name}-dashboard.json": json.dumps(dashboard, indent=1) + "\n"}


def _variables(workload: ServerWorkload) -> list[dict[str, Any]]:
    query = "label_values(appliance_engine_ready, model_name)"
    name = workload.model_name
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {
            "name": "model",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": "model"},
            "current": {"text": name, "value": name},
        },
    ]


def _panel(panel: Panel, index: int, workload: ServerWorkload) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    lines = _lines(panel, workload.slo)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expression, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, *lines]},
                "custom": {"thresholdsStyle": {"mode": "line" if lines else "off"}},
            },
            "overrides": [],
        },
    }


def _lines(panel: Panel, slo: dict[str, float]) -> list[dict[str, Any]]:
    if panel.slo_prefix is None:
        return []
    targets = sorted(seconds for name, seconds in slo.items() if name.startswith(panel.slo_prefix + "_"))
    return [{"color": "red", "value": seconds} for seconds in targets]
