"""What happens in a napari window: run in a process of its own, prints what it found as JSON.

The first argument is a folder with the files that test_napari.py wrote; see there.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import napari
import numpy as np
from napari.layers import Layer
from napari.settings import get_settings
from qtpy.QtCore import QTimer
from qtpy.QtWidgets import QApplication

import hyperslab as hs
from hyperslab.engine import cache, read
from hyperslab.engine.stats import ReadStats
from hyperslab.napari.arrays import Shown
from hyperslab.napari.attendant import attend
from hyperslab.napari.faster import FasterGroup, Rewriting
from hyperslab.napari.layers import image_layers
from hyperslab.napari.widget import HyperslabWidget
from hyperslab.napari.window import show, wait_until_drawn
from hyperslab.viewing import read_ahead_stats, stop_read_ahead

FOLDER = Path(sys.argv[1])

_original_remember = read.remember
_seen: list[ReadStats] = []


def _remember(stats: ReadStats) -> None:
    _seen.append(stats)
    _original_remember(stats)


read.remember = _remember


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count the chunks that readers decode, and those that are decoded ahead."""
    _seen.clear()
    ahead = read_ahead_stats().chunks_decoded
    counts: dict[str, int] = {}
    yield counts
    counts["chunks"] = sum(stats.chunks_decoded for stats in _seen)
    counts["touched"] = counts["chunks"] + sum(s.chunks_filled + s.chunks_cached for s in _seen)
    stop_read_ahead()
    counts["ahead"] = read_ahead_stats().chunks_decoded - ahead


def opened(name: str, **how: Any) -> napari.Viewer:
    viewer = napari.Viewer(**how)
    viewer.open(str(FOLDER / name), plugin="hyperslab")
    wait_until_drawn(viewer)
    return viewer


def about(layer: Any) -> dict[str, Any]:
    found = {
        "kind": type(layer).__name__,
        "name": layer.name,
        "shape": list(layer.data.shape),
        "dtype": str(np.dtype(layer.dtype)),
        "multiscale": layer.multiscale,
        "scale": [float(s) for s in layer.scale],
        "translate": [float(s) for s in layer.translate],
        "units": [f"{unit:~}" for unit in layer.units],
        "axis_labels": list(layer.axis_labels),
        "blending": layer.blending,
    }
    if hasattr(layer, "contrast_limits"):
        found["contrast_limits"] = [float(v) for v in layer.contrast_limits]
        found["contrast_limits_range"] = [float(v) for v in layer.contrast_limits_range]
        found["color"] = [float(v) for v in layer.colormap.colors[-1][:3]]
        found["gamma"] = float(layer.gamma)
    else:
        found["editable"] = layer.editable
    return found


def channels_of_imaris() -> dict[str, Any]:
    cache.clear()
    with counting() as counts:
        viewer = opened("cells.ims")
    found: dict[str, Any] = {"layers": [about(layer) for layer in viewer.layers], "added": counts}
    found["dims"] = list(viewer.dims.axis_labels)
    layer = viewer.layers[0]
    viewer.dims.set_current_step((0, 1), (1, 4))
    wait_until_drawn(viewer)
    level = layer.data_level
    found["plane_level"] = level
    found["plane"] = np.asarray(layer._slice.image.raw).tolist()
    picture = viewer.screenshot(canvas_only=True, flash=False)
    found["brightest"] = picture[..., :3].max(axis=(0, 1)).tolist()

    widget = HyperslabWidget(viewer)
    viewer.window.add_dock_widget(widget)
    viewer.layers.selection.active = layer
    found["last"] = widget._last.text()
    found["facts"] = widget._facts.text()
    found["levels"] = [widget._level.itemText(i) for i in range(widget._level.count())]
    widget._level.setCurrentIndex(2)
    widget._on_level(2)
    found["locked"] = (layer.locked_data_level, layer.data_level)
    layer.locked_data_level = 0  # by somebody else, as napari's own control does
    widget._show_what_changes()
    found["followed"] = widget._level.currentIndex()
    widget._level.setCurrentIndex(0)
    widget._on_level(0)
    found["unlocked"] = layer.locked_data_level
    found["kept"] = cache.nbytes()
    widget._on_clear()
    found["kept_after_clear"] = cache.nbytes()

    # In 3-D: the finest level within the budget, and the zoom's own in 2-D again.
    volume = [int(np.prod(level.shape[1:])) * 2 for level in layer.data]
    attendant = attend(viewer)
    levels = []
    for budget in (volume[0], volume[0] - 1, 1):
        attendant.set_budget(budget)
        viewer.dims.ndisplay = 3
        wait_until_drawn(viewer)
        levels.append((layer.data_level, list(layer._slice.image.raw.shape)))
        viewer.dims.ndisplay = 2
    found["volumes"] = levels
    found["level_in_2d"] = layer.locked_data_level

    # Time may be among the three axes.
    viewer.dims.order = (3, 0, 1, 2)
    viewer.dims.ndisplay = 3
    found["over_time"] = []
    for budget in (2 * 2 * 6 * 70, 2 * 2 * 6 * 70 - 1):
        attendant.set_budget(budget)
        wait_until_drawn(viewer)
        found["over_time"].append((layer.data_level, list(layer._slice.image.raw.shape)))
    viewer.dims.order = (0, 1, 2, 3)
    wait_until_drawn(viewer)
    found["in_space_again"] = layer.data_level
    viewer.dims.ndisplay = 2
    viewer.close()
    return found


def sparse() -> dict[str, Any]:
    """Open the 208 GB file, and step along its axes."""
    cache.clear()
    start = time.perf_counter()
    with counting() as counts:
        viewer = opened("sparse.ims")
    found: dict[str, Any] = {"added": counts, "seconds": time.perf_counter() - start}
    found["level"] = viewer.layers[0].data_level
    found["shapes"] = [list(level.shape) for level in viewer.layers[0].data]
    found["limits"] = [list(map(float, layer.contrast_limits)) for layer in viewer.layers]
    steps = []
    for axis, point in ((0, 7), (1, 30), (1, 31), (0, 8)):
        cache.clear()
        with counting() as counts:
            viewer.dims.set_current_step(axis, point)
            wait_until_drawn(viewer)
        steps.append(counts | {"level": viewer.layers[0].data_level})
    found["steps"] = steps
    cache.clear()
    with counting() as counts:
        viewer.dims.ndisplay = 3
        wait_until_drawn(viewer)
    layer = viewer.layers[0]
    found["volume"] = counts | {"level": layer.data_level, "nbytes": layer._slice.image.raw.nbytes}
    viewer.close()
    return found


def scrolling() -> dict[str, Any]:
    """Scroll a stack up and down: slider steps, and how often each chunk is decoded."""
    cache.clear()
    viewer = opened("stack.h5")
    layer = viewer.layers[0]
    with counting() as counts:
        wrong, seconds = [], []
        cache.clear()
        for z in (*range(48), *range(47, -1, -1)):
            start = time.perf_counter()
            viewer.dims.set_current_step(0, z)
            QApplication.processEvents()
            seconds.append(time.perf_counter() - start)
            if layer._slice.image.raw.shape != (96, 96) or not np.array_equal(
                layer._slice.image.raw, STACK[z]
            ):
                wrong.append(z)
    viewer.close()
    return {"wrong": wrong, **counts, "p95_s": float(np.quantile(seconds, 0.95))}


def kinds() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("labels.h5", "mask.h5", "complex.h5", "color.h5", "scaled.h5"):
        viewer = opened(name)
        found[name] = [about(layer) for layer in viewer.layers]
        if name == "mask.h5":
            viewer.window.add_dock_widget(HyperslabWidget(viewer))
        if name == "labels.h5":
            found["label plane"] = np.asarray(viewer.layers[1]._slice.image.raw).tolist()
            widget = HyperslabWidget(viewer)
            viewer.layers.selection.active = viewer.layers[0]
            found["others"] = [widget._names.itemText(i) for i in range(widget._names.count())]
            widget._on_open()
            found["opened"] = viewer.layers[-1].name
            widget.close()
        viewer.close()
    viewer = napari.Viewer()
    for name in ("text.txt", "plain.h5", "line.h5"):
        try:
            viewer.open(str(FOLDER / name), plugin="hyperslab")
        except Exception as error:  # noqa: BLE001 - what the person is shown
            found[name] = f"{type(error).__name__}: {error}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        viewer.open(str(FOLDER / "many.h5"), plugin="hyperslab")
    found["many.h5"] = [layer.name for layer in viewer.layers]
    found["many.h5 said"] = [str(w.message) for w in caught if "hyperslab" in str(w.filename)]
    viewer.open_sample("hyperslab", "cells")
    found["sample"] = [layer.name for layer in viewer.layers[len(found["many.h5"]) :]]
    viewer.close()
    return found


def orders() -> dict[str, Any]:
    """Axes that are not in napari's order, and more channels than layers can be."""
    viewer = napari.Viewer()
    image = hs.open_image(FOLDER / "slices.h5", "MR/p1", axes="YXZ")
    for data in image_layers(image):
        viewer.add_layer(Layer.create(*data))
    viewer.dims.set_current_step(0, 3)
    wait_until_drawn(viewer)
    (layer,) = viewer.layers
    found: dict[str, Any] = {"slices": about(layer)}
    found["slice"] = np.asarray(layer._slice.image.raw).tolist()
    viewer.close()
    viewer = opened("spectrum.ims")
    (layer,) = viewer.layers
    found["spectrum"] = about(layer)
    viewer.dims.set_current_step(1, 34)
    wait_until_drawn(viewer)
    found["channel 34"] = np.asarray(layer._slice.image.raw).tolist()
    viewer.close()
    return found


def pictures() -> dict[str, Any]:
    """Pictures of a sound file, and of one with a damaged chunk that is read in the background."""
    get_settings().experimental.async_ = True
    found: dict[str, Any] = {}
    for name in ("cells.ims", "damaged.ims"):
        try:
            show([hs.open_image(FOLDER / name)], screenshot=FOLDER / f"{name}.png")
        except Exception as error:  # noqa: BLE001 - what the person is told
            found[name] = f"{type(error).__name__}: {error}"
    found["files"] = sorted(path.name for path in FOLDER.glob("*.png"))
    get_settings().experimental.async_ = False
    return found


def responsive() -> dict[str, Any]:
    """Count the ticks of a timer while a plane takes a second to be read."""
    get_settings().experimental.async_ = True
    viewer = opened("stack.h5")
    layer = viewer.layers[0]
    original = Shown.__array__
    gate = threading.Event()

    def slow(self: Any, *how: Any) -> Any:
        gate.wait(10)
        return original(self, *how)

    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 20:
            gate.set()

    timer = QTimer()
    timer.timeout.connect(tick)
    timer.start(10)
    Shown.__array__ = slow
    try:
        viewer.dims.set_current_step(0, 5)
        busy = not layer.loaded
        wait_until_drawn(viewer)
    finally:
        Shown.__array__ = original
    timer.stop()
    found = {
        "ticks": ticks,
        "waited": gate.is_set(),
        "busy": busy,
        "right": bool(np.array_equal(layer._slice.image.raw, STACK[5])),
    }
    viewer.close()
    get_settings().experimental.async_ = False
    return found


def made_fast() -> dict[str, Any]:
    """The widget writes an image anew: cancelled, gone on with, opened, and where it must not."""
    found: dict[str, Any] = {}
    for number, target in enumerate(("cells-fast.ims", "cells.ome.zarr")):
        viewer = opened("cells.ims")
        widget = HyperslabWidget(viewer)
        group = widget._faster
        group.form.setCurrentIndex(number)
        steps: dict[str, Any] = {"at first": group.write.isEnabled()}
        original = Rewriting.start
        Rewriting.start = lambda self, start=original: (self.cancel(), start(self))
        try:
            group.begin(str(FOLDER / target))
        finally:
            Rewriting.start = original
        steps["while it runs"] = (group.write.isEnabled(), group.cancel.isEnabled())
        _until_ended(group)
        steps["cancelled"] = (group.words.text(), (FOLDER / target).exists())
        shown: list[int] = []
        group.begin(str(FOLDER / target))
        group.rewriting.progressed.connect(lambda _, done, shown=shown: shown.append(done))
        _until_ended(group)
        steps["done"] = group.words.text()
        steps["progress"] = shown
        steps["can be opened"] = not group.open.isHidden()
        if number == 0:
            group._on_open()
            steps["layers"] = [layer.name for layer in viewer.layers]
        group.begin(str(FOLDER / target))
        _until_ended(group)
        steps["again"] = group.words.text()
        widget.close()
        viewer.close()
        found[target] = steps
    return found


def _until_ended(group: FasterGroup) -> None:
    give_up = time.monotonic() + 30
    while group.rewriting is not None and time.monotonic() < give_up:
        QApplication.processEvents()
        time.sleep(0.005)


STACK = np.load(FOLDER / "stack.npy")
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", module="napari|vispy|qtpy|pydantic|app_model|superqt")
    report = {}
    for part in (
        channels_of_imaris,
        sparse,
        scrolling,
        kinds,
        orders,
        pictures,
        responsive,
        made_fast,
    ):
        start = time.perf_counter()
        report[part.__name__] = part()
        print(part.__name__, round(time.perf_counter() - start, 2), "s", file=sys.stderr)
    (FOLDER / "report.json").write_text(json.dumps(report))
