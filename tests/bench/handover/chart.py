"""Draws bench_handover's JSON as SVG: chart.py JSON SVG

It plots the p50 of a hand-over over the tensor's size, one line for each way, with one consumer and
no other work on the GPU. Both axes are logarithmic. The chart is readable on a light and on a dark
background, and uses no external fonts, scripts or files.
"""

import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 960, 560
LEFT, RIGHT, TOP, BOTTOM = 76, 250, 64, 52
LABEL_GAP = 17  # Between the names at the ends of the lines.
# Kept memory, new memory, copies: one hue each. gpushm's lines are thick.
STYLES = {
    "gpushm-signal": ("#0a7d54", "#3ddc97", ""),
    "gpushm-ring": ("#0a7d54", "#3ddc97", "9 3 2 3"),
    "gpushm-held": ("#0a7d54", "#3ddc97", "1 3"), "raw-held": ("#5b6b73", "#a9bac4", ""),
    "cuipc-events": ("#7a4fd0", "#b79bff", ""), "gpushm-new": ("#0a7d54", "#3ddc97", "7 4"),
    "gpushm-offer": ("#0a7d54", "#3ddc97", "2 4"), "raw-new": ("#5b6b73", "#a9bac4", "7 4"),
    "cuipc-open": ("#7a4fd0", "#b79bff", "7 4"), "torch": ("#c2410c", "#ff9d66", "7 4"),
    "pinned": ("#1d63c4", "#7db4ff", ""), "pageable": ("#1d63c4", "#7db4ff", "7 4"),
}
PLAIN = ("#333333", "#dddddd", "")


def size_name(size):
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


def time_name(ns):
    for unit, base in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= base:
            return f"{ns / base:g} {unit}"
    return f"{ns:g} ns"


def series_of(rows, peers=1, neighbour=False):
    """Returns {way: [(bytes, p50 in ns), ...]} of the rows measured under these conditions."""
    series = {}
    for row in rows:
        if row["peers"] == peers and row["neighbour"] == neighbour and "p50_ns" in row:
            series.setdefault(row["way"], []).append((row["tensor_size"], row["p50_ns"]))
    return {way: sorted(points) for way, points in series.items()}


def style_sheet(ways):
    light = [f".{way}{{stroke:{STYLES.get(way, PLAIN)[0]}}}text.{way}{{fill:"
             f"{STYLES.get(way, PLAIN)[0]};stroke:none}}" for way in ways]
    dark = [f".{way}{{stroke:{STYLES.get(way, PLAIN)[1]}}}text.{way}{{fill:"
            f"{STYLES.get(way, PLAIN)[1]};stroke:none}}" for way in ways]
    return ("<style>text{font:13px system-ui,sans-serif;fill:#1f2328}"
            ".ground{fill:#ffffff}.grid{stroke:#d8dee4;stroke-width:1}.small{font-size:12px}"
            ".title{font-size:16px;font-weight:600}path{fill:none;stroke-width:1.8}"
            "path.ours{stroke-width:3.2}circle{stroke-width:1.6;fill:#ffffff}" + "".join(light) +
            "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}"
            ".grid{stroke:#30363d}circle{fill:#0d1117}" + "".join(dark) + "}</style>")


class Scale:
    """Maps values to pixels on a logarithmic scale."""

    def __init__(self, low, high, first, last):
        self.low, self.span = math.log10(low), max(math.log10(high) - math.log10(low), 1e-9)
        self.first, self.last = first, last

    def __call__(self, value):
        part = (math.log10(value) - self.low) / self.span
        return self.first + part * (self.last - self.first)


def grid(sizes, powers, x, y):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for power in powers:
        at = y(10.0 ** power)
        yield f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>'
        yield (f'<text class="small" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
               f'{time_name(10.0 ** power)}</text>')
    for size in sizes:
        at = x(size)
        yield f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}"/>'
        yield (f'<text class="small" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">'
               f'{size_name(size)}</text>')
    yield (f'<text class="small" x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 12}" '
           'text-anchor="middle">size of the tensor</text>')


def label_places(ends):
    """Moves the names at the lines' ends apart; returns {way: y}."""
    places, last = {}, TOP - LABEL_GAP
    for way, at in sorted(ends.items(), key=lambda item: item[1]):
        last = max(at, last + LABEL_GAP)
        places[way] = last
    over = max(0, last - (HEIGHT - BOTTOM))
    above = HEIGHT - BOTTOM + LABEL_GAP
    for way in sorted(places, key=places.get, reverse=True):  # Moves them up again if they left the chart.
        if over:
            places[way] = min(places[way], above - LABEL_GAP)
            above = places[way]
    return places


def lines(series, x, y):
    ends = {way: y(points[-1][1]) for way, points in series.items()}
    places = label_places(ends)
    for way, points in series.items():
        dash = STYLES.get(way, PLAIN)[2]
        path = "M" + " L".join(f"{x(size):.1f} {y(ns):.1f}" for size, ns in points)
        ours = " ours" if way.startswith("gpushm") else ""
        yield (f'<path class="{way}{ours}" d="{path}"' +
               (f' stroke-dasharray="{dash}"' if dash else "") + "/>")
        for size, ns in points:
            yield (f'<circle class="{way}" cx="{x(size):.1f}" cy="{y(ns):.1f}" r="3">'
                   f"<title>{way}, {size_name(size)}: {time_name(round(ns, -2))}</title></circle>")
        last = points[-1]
        yield (f'<text class="{way}" x="{WIDTH - RIGHT + 14}" y="{places[way] + 4:.1f}">{way}: '
               f"{time_name(float(f'{last[1]:.3g}'))}</text>")


def draw(results):
    context = results["context"]
    series = series_of(results["benchmarks"])
    where = html.escape(", ".join(filter(None, [
        context.get("gpu"), f"driver {context.get('driver')}", context.get("date", "")[:10],
        "SIMULATED: not a GPU's times" if context.get("simulated") == "yes" else ""])))
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" role="img" '
           'aria-label="Time of a hand-over against the size of the tensor">')
    yield style_sheet(series)
    yield f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>'
    yield (f'<text class="title" x="{LEFT}" y="28">From "the bytes are on the GPU" until another '
           "process has read them, p50</text>")
    yield f'<text class="small" x="{LEFT}" y="47">{where}; one consumer, GPU otherwise idle</text>'
    if series:
        sizes = sorted({size for points in series.values() for size, _ in points})
        times = [ns for points in series.values() for _, ns in points]
        powers = range(math.floor(math.log10(min(times))), math.ceil(math.log10(max(times))) + 1)
        x = Scale(sizes[0], sizes[-1], LEFT + 12, WIDTH - RIGHT - 12)
        y = Scale(10.0 ** powers[0], 10.0 ** powers[-1], HEIGHT - BOTTOM, TOP)
        yield from grid(sizes, powers, x, y)
        yield from lines(series, x, y)
    yield "</svg>"


def main():
    results = json.loads(pathlib.Path(sys.argv[1]).read_text())
    pathlib.Path(sys.argv[2]).write_text("\n".join(draw(results)) + "\n")


if __name__ == "__main__":
    main()
