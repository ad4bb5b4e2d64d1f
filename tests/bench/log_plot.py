"""Lines in a plot with two logarithmic axes, as an SVG file that a page can show directly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 660, 400, 64, 150, 52, 52

Lines = Mapping[str, Sequence[tuple[float, float]]]


def log_plot(lines: Lines, *, title: str, subtitle: str, x_label: str, y_label: str) -> str:
    """Return the plot. `lines` has ascending points by label, with the same x in each. There may be as many lines as
    colours."""
    xs = [point[0] for point in next(iter(lines.values()))]
    ys = [math.log10(value) for points in lines.values() for _, value in points]
    low, high = math.floor(min(ys)), math.ceil(max(ys))

    def x(value: float) -> float:
        span = math.log10(max(xs) / min(xs)) or 1
        return LEFT + math.log10(value / min(xs)) / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)

    def parts() -> Iterator[str]:
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        yield ' font-family="sans-serif" font-size="12" fill="#222">'
        yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        yield text(LEFT, 22, title, font_size="15")
        yield text(LEFT, 39, subtitle, font_size="11", fill="#666")
        for power in range(low, high + 1):
            place = y(10**power)
            yield f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield text(LEFT - 8, place + 4, f"{10**power:g}", text_anchor="end")
        for value in xs:
            yield f'<path d="M{x(value):.1f} {HEIGHT - BOTTOM}v5" stroke="#666"/>'
            yield text(x(value), HEIGHT - BOTTOM + 19, f"{value:,}", text_anchor="middle")
        yield f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#666"/>'
        yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, text_anchor="middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        yield text(18, middle, y_label, text_anchor="middle", transform=f"rotate(-90 18 {middle:.1f})")
        free = 0.0
        ordered = sorted(zip(lines.items(), COLOURS, strict=False), key=lambda item: y(item[0][1][-1][1]))
        for (label, points), colour in ordered:
            places = [(x(value), y(cost)) for value, cost in points]
            yield f'<path d="M{joined(places)}" fill="none" stroke="{colour}" stroke-width="2"/>'
            for px, py in places:
                yield f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>'
            free = max(places[-1][1] + 4, free + 15)  # labels that would overlap are moved down
            yield text(places[-1][0] + 10, free, label, fill=colour)
        yield "</svg>"

    return "\n".join(parts()) + "\n"


def joined(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{px:.1f} {py:.1f}" for px, py in places)


def text(px: float, py: float, content: str, **style: str) -> str:
    rest = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{px:.1f}" y="{py:.1f}"{rest}>{content}</text>'
