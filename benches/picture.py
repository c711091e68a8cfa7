"""Bars as SVG, whose colours follow the reader's light or dark scheme."""

from xml.sax.saxutils import escape

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; } .workload { font-weight: 600; } .note { fill: #656d76; font-size: 11px; }
.ours { fill: #0f7a6c; } .peer { fill: #a8b1bb; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .note { fill: #8d96a0; } .ours { fill: #2dbfa9; } .peer { fill: #59636e; }
}
"""
WIDTH, LABEL, BAR, GAP, TOP = 860, 180, 18, 14, 58


def svg(title, note, workloads, longest=None):
    """`workloads`: [(name, [(program, amount, text beside the bar, whether it is ours)])]. A bar of `longest` is as long as can be;
    without one that is the longest of each workload."""
    parts, y = [], TOP
    for name, bars in workloads:
        parts.append(f'<text class="workload" x="10" y="{y + 12}">{escape(name)}</text>')
        y += BAR + 2
        most = longest or max(amount for _, amount, _, _ in bars) or 1
        for program, amount, text, ours in bars:
            length = max(2, (WIDTH - LABEL - 230) * amount / most)
            kind = "ours" if ours else "peer"
            parts.append(f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(program)}</text>')
            parts.append(f'<rect class="{kind}" x="{LABEL}" y="{y + 2}" width="{length:.1f}" height="{BAR - 4}" rx="2"/>')
            parts.append(f'<text x="{LABEL + length + 6:.1f}" y="{y + 13}">{escape(text)}</text>')
            y += BAR
        y += GAP
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" role="img">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>",
        f'<text class="title" x="10" y="22">{escape(title)}</text>',
        f'<text class="note" x="10" y="42">{escape(note)}</text>', *parts, "</svg>", "",
    ])  # fmt: skip
