"""The doctor's report as one page of HTML that needs nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape

import hyperslab
from hyperslab.advice import Advice, KindAdvice, Machine
from hyperslab.advice.words import best_option, duration
from hyperslab.cli.doctor_words import (
    WAYS,
    machine_words,
    names,
    notes,
    of_now,
    rates_words,
    seconds,
    storage,
)
from hyperslab.cli.drawings import Dots, draw_dots, draw_volume
from hyperslab.cli.terminal import size, times

__all__ = ["report_html"]

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1d2433; --quiet: #667085; --line: #d9dee7;
  --card: #f6f8fb; --slab: #f0a43c; --used: #2f6fde; --h5py: #d2691e; --ours: #2f6fde;
  --good: #1f8a4c; --bad: #c2610c; }
@media (prefers-color-scheme: dark) { :root { --back: #14171d; --text: #e4e8ef; --quiet: #98a2b3;
  --line: #333a46; --card: #1c2129; --slab: #d98a1f; --used: #6ea3ff; --h5py: #f0914a;
  --ours: #6ea3ff; --good: #4cc38a; --bad: #f0a43c; } }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.5rem 3rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 0; overflow-wrap: anywhere; }
.quiet, figcaption { color: var(--quiet); font-size: .9rem; margin: .15rem 0; }
.foot { margin-top: 2.5rem; }
.verdict { border-left: 4px solid var(--good); background: var(--card); padding: .9rem 1.1rem;
  margin: 1.2rem 0; border-radius: 0 6px 6px 0; }
.verdict.slow { border-color: var(--bad); }
.verdict p { margin: 0; }
pre { background: var(--back); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem .8rem; margin: .8rem 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; font-size: .85rem; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
tr.best td { color: var(--good); font-weight: 600; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin: 1rem 0; }
figure { margin: 0; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .head { font-weight: 600; } svg .value { fill: var(--quiet); }
.volume polygon { fill: var(--card); stroke: var(--quiet); stroke-width: 1; }
.grid line { stroke: var(--quiet); stroke-width: .6; opacity: .45; }
.slab polygon { fill: var(--slab); fill-opacity: .55; stroke: var(--slab); stroke-width: 1; }
.used polygon { fill: var(--used); fill-opacity: .8; stroke: var(--used); stroke-width: 1; }
.rule, .tick { stroke: var(--line); stroke-width: 1; }
.ring { fill: none; stroke-width: 1.6; } .between { stroke-width: 2; opacity: .5; }
.h5py .ring, .h5py .between { stroke: var(--h5py); } .h5py .disc { fill: var(--h5py); }
.ours .ring, .ours .between { stroke: var(--ours); } .ours .disc { fill: var(--ours); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 .8em;
  vertical-align: -.05em; }
.key:first-child { margin-left: 0; } .key.round { border-radius: 50%; }
ul { padding-left: 1.2rem; } li.costs::marker { content: "! "; color: var(--bad); }
"""


def report_html(found: Advice) -> str:
    """Return the report: verdict and command, and a section with pictures for every kind.

    Everything is inside: no script, nothing is fetched. Texts of the file are escaped.
    """
    name = escape(os.path.basename(found.file))
    command = f"<pre><code>{escape(found.command)}</code></pre>" if found.command else ""
    slow = " slow" if found.slow else ""
    left_out = "".join(f"<li class=costs>{escape(line)}</li>" for line in found.left_out)
    left_out = f"<ul>{left_out}</ul>" if left_out else ""
    sections = "".join(_section(kind, found.machine) for kind in found.kinds)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{name}: doctor</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>"
        f'<p class="quiet">{escape(found.file)}, {size(found.nbytes)}</p>'
        f'<div class="verdict{slow}"><p>{escape(found.verdict)}</p>{command}</div>{sections}'
        f'{left_out}<p class="quiet foot">{escape(machine_words(found.machine))} '
        f"hyperslab {hyperslab.__version__}.</p></body></html>\n"
    )


def _section(kind: KindAdvice, machine: Machine) -> str:
    findings = "".join(
        f"<li{' class=costs' if finding.costs else ''}>{escape(finding.text)}</li>"
        for finding in kind.findings
    )
    remarks = "".join(f'<p class="quiet">{escape(line)}</p>' for line in notes(kind, machine))
    return (
        f'<section><h2>{escape(names(kind))}</h2><p class="quiet">{escape(storage(kind))}</p>'
        f'<p class="quiet">{escape(rates_words(kind))}</p>'
        f'<div class="scroll">{_patterns(kind)}</div>{remarks}'
        f"{f'<ul>{findings}</ul>' if findings else ''}"
        f'<div class="pictures">{"".join(_volumes(kind))}</div>{_chart(kind)}'
        f'<div class="scroll">{_options(kind, machine)}</div></section>'
    )


def _patterns(kind: KindAdvice) -> str:
    heads = ("a request", "chunks", "decoded", "used", "decoded/used", "read/used", "h5py")
    rows = [
        (
            pattern.access,
            f"{pattern.chunks_touched:,.0f}" if pattern.chunks_touched else "-",
            size(pattern.decoded_nbytes),
            size(pattern.used_nbytes),
            times(pattern.amplification),
            times(pattern.read_amplification),
            *(seconds(pattern, by) for by in WAYS),
        )
        for pattern in kind.patterns
    ]
    return _table((*heads, "in order", "hyperslab", "in order"), rows)


def _options(kind: KindAdvice, machine: Machine) -> str:
    if not kind.options:
        return ""
    best = best_option(kind, machine)
    rows = []
    for option in kind.options:
        h5py = option.predicted_s["h5py"]
        plugin = ", needs hdf5plugin" if option.needs_plugin else ""
        rows.append(
            (
                f"{option.chunks}, {option.codec}",
                size(option.stored_nbytes),
                of_now(option, kind),
                duration(option.repack_s),
                f"{'' if h5py is None else duration(h5py)}{plugin}".lstrip(", "),
                duration(option.ours_s),
            )
        )
    heads = (f"after a repack, {kind.patterns[0].access}", "on disk", "of now", "repack takes")
    marked = [option is best for option in kind.options]
    return _table((*heads, "h5py", "hyperslab"), rows, marked)


def _volumes(kind: KindAdvice) -> Iterator[str]:
    for pattern in kind.patterns:
        if pattern.region == kind.shape:
            continue  # all of it: nothing to see
        picture = draw_volume(kind.shape, kind.chunks, pattern.region, pattern.slab_region)
        words = (
            f'<i class="key" style="background:var(--used)"></i>used, {size(pattern.used_nbytes)}'
        )
        if kind.chunks is not None:
            words += (
                '<i class="key" style="background:var(--slab)"></i>decoded, '
                f"{size(pattern.decoded_nbytes)}"
            )
        heading = f"<b>{escape(pattern.access)}</b>"
        yield f"<figure><figcaption>{heading}<br>{words}</figcaption>{picture}</figure>"


def _chart(kind: KindAdvice) -> str:
    labels = dict(
        zip(WAYS, ("h5py", "h5py, in order", "hyperslab", "hyperslab, in order"), strict=True)
    )
    rows = [
        Dots(
            label=labels[by],
            group=pattern.access,
            who="h5py" if by.startswith("h5py") else "ours",
            predicted_s=pattern.predicted_s[by],
            measured_s=(pattern.measured_s or {}).get(by),
        )
        for pattern in kind.patterns
        for by in WAYS
        if pattern.requests_per_slab > 1 or not by.endswith("in_order")
    ]
    rows += [
        Dots(
            label=f"{option.codec}, {by}",
            group=f"{kind.patterns[0].access}, after a repack",
            who="h5py" if by == "h5py" else "ours",
            predicted_s=option.predicted_s[by],
            measured_s=None,
        )
        for option in kind.options
        for by in ("h5py", "hyperslab")
        if option.predicted_s[by] is not None
    ]
    key = (
        '<i class="key round" style="background:var(--h5py)"></i>h5py'
        '<i class="key round" style="background:var(--ours)"></i>hyperslab'
        '<i class="key round" style="background:var(--quiet)"></i>measured'
        '<i class="key round" style="border:1.6px solid var(--quiet)"></i>predicted'
    )
    caption = f"<figcaption>Seconds a request, a tick ten times the one before. {key}</figcaption>"
    return f"<figure>{caption}{draw_dots(rows)}</figure>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    def line(cells: Sequence[str], tag: str, name: str = "") -> str:
        shown = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
        return f"<tr{name}>{shown}</tr>"

    marks = [*marked, *[False] * (len(rows) - len(marked))]
    body = "".join(
        line(row, "td", ' class="best"' if mark else "")
        for row, mark in zip(rows, marks, strict=True)
    )
    return f"<table><thead>{line(heads, 'th')}</thead><tbody>{body}</tbody></table>"
