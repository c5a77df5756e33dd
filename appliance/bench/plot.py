"""Small SVG line charts, self-contained: no script, no outside resource, readable in light and dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 520, 240, 56, 34, 26, 12
_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    low: float
    high: float

    def place(self, value: float, start: float, length: float) -> float:
        return start + (value - self.low) / ((self.high - self.low) or 1.0) * length


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """One chart with a line a series. Empty series are left out; a chart without points says so."""
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return f"<figure><figcaption>{escape(title)}: no data</figcaption></figure>"
    x = _axis(x_label, [point[0] for points in drawn.values() for point in points])
    y = _axis(y_label, [0.0] + [point[1] for points in drawn.values() for point in points])
    parts = [
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="16" class="title">{escape(title)}</text>',
        *_grid(x, y),
    ]
    for index, (name, points) in enumerate(drawn.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{16 + 13 * index}" fill="{colour}" class="key">{escape(name)}</text>'
        )
    return "".join([*parts, "</svg></figure>"])


def cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, share of values at or below it in percent), ascending."""
    ordered = sorted(values)
    return [(value, 100.0 * (rank + 1) / len(ordered)) for rank, value in enumerate(ordered)]


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for tick in _ticks(y):
        at = _y(y, tick)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="tick end">{tick:g}</text>')
    for tick in _ticks(x):
        parts.append(f'<text x="{_x(x, tick):.1f}" y="{_HEIGHT - _BOTTOM + 15}" class="tick middle">{tick:g}</text>')
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 4}" class="tick middle">{escape(x.label)}</text>')
    parts.append(f'<text x="4" y="{_TOP + 4}" class="tick">{escape(y.label)}</text>')
    return parts


def _axis(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    step = _step(high - low)
    return Axis(label, math.floor(low / step) * step, math.ceil(high / step) * step)


def _step(span: float) -> float:
    """The least of 1, 2, 5 times a power of ten that makes at most five intervals."""
    raw = max(span, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)


def _ticks(axis: Axis) -> list[float]:
    step = _step(axis.high - axis.low)
    count = round((axis.high - axis.low) / step)
    return [round(axis.low + step * i, 10) for i in range(count + 1)]


def _x(axis: Axis, value: float) -> float:
    return axis.place(value, _LEFT, _WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return axis.place(value, _HEIGHT - _BOTTOM, -(_HEIGHT - _BOTTOM - _TOP))
