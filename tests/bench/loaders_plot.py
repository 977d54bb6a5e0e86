#!/usr/bin/env python3
"""A picture of what loaders.py measured: GB/s of each loader, by processors.

usage: loaders_plot.py JSON SVG
"""

import html
import json
import pathlib
import sys

BAR, GAP, LEFT, WIDTH = 16, 14, 230, 420


def main():
    source, target = map(pathlib.Path, sys.argv[1:3])
    best = {}  # By processors and loader, of all turns and runs.
    for row in json.loads(source.read_text())["rows"]:
        if row["content"] == "400 tensors" and "gb_per_s" in row:
            key = row["processors"], row["loader"]
            best[key] = max(best.get(key, 0), row["gb_per_s"])
    scale, y, parts, former = WIDTH / max(best.values()), 24, [], None
    for (processors, loader), speed in sorted(best.items(), key=lambda item: (item[0][0], -item[1])):
        if processors != former:
            y += GAP
            parts.append(f'<text x="0" y="{y + 12}" font-weight="bold">{processors} {"processor" if processors == 1 else "processors"}</text>')
            y, former = y + BAR + 6, processors
        colour = "#2a78d6" if loader.startswith("gpushm") else "#9a9a9a"
        parts.append(f'<text x="12" y="{y + 12}">{html.escape(loader)}</text>'
                     f'<rect x="{LEFT}" y="{y}" width="{speed * scale:.1f}" height="{BAR - 3}" fill="{colour}"/>'
                     f'<text x="{LEFT + speed * scale + 6:.1f}" y="{y + 12}">{speed:.1f}</text>')
        y += BAR + 2
    target.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{y + 10}" '
                      f'font-family="sans-serif" font-size="12"><title>GB/s from the page cache to the GPU</title>'
                      f'<rect width="100%" height="100%" fill="white"/>'
                      f'<text x="0" y="16" font-size="14">GB/s from the page cache to one H200, 16 GiB</text>'
                      f'{"".join(parts)}</svg>\n')


if __name__ == "__main__":
    main()
