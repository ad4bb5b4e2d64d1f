"""Lines over time, one panel above the other, as an SVG file that a page can show directly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from log_plot import COLOURS, joined, text

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, BOTTOM = 720, 150, 58, 130, 60, 34, 46
TICKS = 5

Lines = Mapping[str, Sequence[tuple[float, float]]]


def time_plot(
    panels: Mapping[str, Lines],
    *,
    title: str,
    subtitle: str,
    x_label: str,
    shaded: tuple[float, float, str],
    lowest: Mapping[str, float],
) -> str:
    """Return the plot.

    - `panels`: lines by label, by label of the y axis, with the same lines in each panel. Points ascend in x from 0.
      Later lines are drawn under earlier ones.
    - `shaded`: start, end and label of a time.
    - `lowest`: the start of the y axis of panels with a logarithmic one. Smaller values are drawn there.
    """
    right = max(points[-1][0] for lines in panels.values() for points in lines.values())
    height = TOP + len(panels) * (PANEL + GAP) - GAP + BOTTOM

    def x(value: float) -> float:
        return LEFT + value / right * (WIDTH - LEFT - RIGHT)

    def parts() -> Iterator[str]:
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        yield ' font-family="sans-serif" font-size="12" fill="#222">'
        yield f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        yield text(LEFT, 22, title, font_size="15")
        yield text(LEFT, 39, subtitle, font_size="11", fill="#666")
        for number, (label, lines) in enumerate(panels.items()):
            yield from panel(TOP + number * (PANEL + GAP), label, lines)
        for value in (value for value in ticks(right, 10) if value <= right):
            yield f'<path d="M{x(value):.1f} {height - BOTTOM}v5" stroke="#666"/>'
            yield text(x(value), height - BOTTOM + 19, f"{value:g}", text_anchor="middle")
        yield text((LEFT + WIDTH - RIGHT) / 2, height - 8, x_label, text_anchor="middle")
        for number, (label, colour) in enumerate(zip(next(iter(panels.values())), COLOURS, strict=False)):
            yield text(WIDTH - RIGHT + 12, TOP + 12 + 17 * number, label, fill=colour)
        yield "</svg>"

    def panel(top: float, label: str, lines: Lines) -> Iterator[str]:
        bottom = top + PANEL
        highest = max(value for points in lines.values() for _, value in points)
        low = lowest.get(label)
        steps = ticks(highest, TICKS) if low is None else powers(low, highest)

        def y(value: float) -> float:
            if low is None:
                return bottom - value / steps[-1] * PANEL
            return (
                bottom - math.log10(max(value, low) / low) / math.log10(max(highest, steps[-1]) / low) * PANEL
            )

        start, end, what = shaded
        yield f'<rect x="{x(start):.1f}" y="{top}" width="{x(end) - x(start):.1f}" height="{PANEL}" fill="#f0f0f0"/>'
        if top == TOP:
            yield text(x(start) + 6, top + 15, what, fill="#666", font_size="11")
        for value in steps:
            yield f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield text(LEFT - 8, y(value) + 4, f"{value:g}", text_anchor="end")
        yield f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="#666"/>'
        middle = (top + bottom) / 2
        yield text(18, middle, label, text_anchor="middle", transform=f"rotate(-90 18 {middle:.1f})")
        for points, colour in reversed(list(zip(lines.values(), COLOURS, strict=False))):
            places = [(x(moment), y(value)) for moment, value in points]
            yield f'<path d="M{joined(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    return "\n".join(parts()) + "\n"


def ticks(highest: float, count: int) -> list[float]:
    """Return 0 and about `count` round numbers in equal steps. The last one is not below `highest`."""
    rough = max(highest, 1e-9) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [step * number for number in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


def powers(lowest: float, highest: float) -> list[float]:
    """Return the powers of ten between both, and at least one."""
    first = math.ceil(math.log10(lowest) - 1e-9)
    return [10.0**power for power in range(first, max(first, math.floor(math.log10(highest))) + 1)]
