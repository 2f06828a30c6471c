"""The bars of an explained position as SVG: target and draft side by side, what is accepted, what the residual fills.

For every token two bars, target and draft, share their accepted part; above it stand the deficit (target side, reached
through the residual) and the surplus (draft side, rejected).  One panel for each position; nothing is loaded from
outside, and names are text, never markup.
"""

from __future__ import annotations

from html import escape

from specgauge.model.exact import PositionDistribution
from specgauge.model.explain import Explanation
from specgauge.model.text_table import printable

ACCEPTED, DEFICIT, SURPLUS, INK = "#4477aa", "#228833", "#ee6677", "#222222"
_BAR, _GAP, _PLOT, _LEFT, _TOP, _BOTTOM = 26, 22, 200, 48, 56, 44
_LEGEND_WIDTH = 470
_LONGEST_NAME = 12


def explanation_svg(explanation: Explanation) -> str:
    """One SVG document, about 70 pixels for each token and 300 for each position."""
    count = len(explanation.names)
    width = max(_LEFT + count * (2 * _BAR + _GAP) + _GAP, _LEGEND_WIDTH)
    panel = _TOP + _PLOT + _BOTTOM
    height = panel * len(explanation.positions)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>Speculative sampling, {escape(explanation.rule)} rule</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, law in enumerate(explanation.positions):
        parts += _panel(explanation, law, i, top=i * panel, width=width)
    return "\n".join([*parts, "</svg>", ""])


def _panel(explanation: Explanation, law: PositionDistribution, index: int, *, top: int, width: int) -> list[str]:
    largest = max(float(law.target_probs.max()), float(law.draft_probs.max()))
    base = top + _TOP + _PLOT
    masses = f"overlap {float(law.overlap):.4g}, rejected {float(law.rejected):.4g}"
    title = f"position {index + 1} (target left, draft right): {masses}"
    parts = [_text(_LEFT, top + 18, title, size=14), *_legend(top + 38)]
    for share in (0.0, 0.5, 1.0):
        y = base - share * _PLOT
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{width - 8}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{share * largest:.3g}", anchor="end"))
    for v, name in enumerate(explanation.names):
        x = _LEFT + _GAP + v * (2 * _BAR + _GAP)
        scale = _PLOT / largest
        target, draft = float(law.target_probs[v]), float(law.draft_probs[v])
        accepted = float(law.accepted[v])
        about = f"{name}: target {target:.4g}, draft {draft:.4g}, accepted {accepted:.4g}"
        tip = f"{about}, residual {float(law.residual[v]):.4g}"
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts += _stack(x, base, accepted * scale, float(law.deficit[v]) * scale, DEFICIT)
        parts += _stack(x + _BAR, base, accepted * scale, float(law.surplus[v]) * scale, SURPLUS)
        parts.append("</g>")
        short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        parts.append(_text(x + _BAR, base + 16, short, anchor="middle"))
        parts.append(_text(x + _BAR, base + 32, f"res. {float(law.residual[v]):.3g}", anchor="middle", size=10))
    return parts


def _stack(x: float, base: float, accepted: float, rest: float, color: str) -> list[str]:
    return [
        f'<rect x="{x:.1f}" y="{base - height - under:.2f}" width="{_BAR - 2}" height="{height:.2f}" fill="{fill}"/>'
        for height, under, fill in ((accepted, 0.0, ACCEPTED), (rest, accepted, color))
        if height > 0
    ]


def _legend(y: float) -> list[str]:
    parts, x = [], float(_LEFT)
    entries = ((ACCEPTED, "accepted"), (DEFICIT, "target: deficit"), (SURPLUS, "draft: surplus (rejected)"))
    for color, label in entries:
        parts.append(f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" fill="{color}"/>')
        parts.append(_text(x + 15, y, label))
        x += 40 + 6.5 * len(label)
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="{INK}">{escape(printable(text))}</text>'
