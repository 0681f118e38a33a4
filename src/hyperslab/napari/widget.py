"""The widget "HDF5 image": what the selected layer is and costs, how it is shown, made fast."""

from __future__ import annotations

import html
import os
import re
from typing import TYPE_CHECKING, Any

from qtpy.QtCore import Qt, QTimer
from qtpy.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFormLayout,
    QGroupBox,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from hyperslab.engine import cache
from hyperslab.engine.limits import limits
from hyperslab.engine.stats import ReadStats, last_stats
from hyperslab.errors import HyperslabError
from hyperslab.exports.text import human_nbytes, sizes_text
from hyperslab.image import Image, open_image
from hyperslab.napari.access import plane_words, storage_words
from hyperslab.napari.attendant import attend, image_of, set_level
from hyperslab.napari.faster import FasterGroup
from hyperslab.napari.layers import image_layers
from hyperslab.napari.units import handy_units

if TYPE_CHECKING:
    import napari

__all__ = ["HyperslabWidget"]

_REFRESH_MS = 500
_WIDTH = 280


class HyperslabWidget(QWidget):  # type: ignore[misc, unused-ignore]
    """Facts of the selected layer, its level, the budget in 3-D, the cache, other images.

    Parameters
    ----------
    viewer
        That it is docked in.
    """

    def __init__(self, viewer: napari.Viewer) -> None:
        super().__init__()
        self._viewer = viewer
        self._attendant = attend(viewer)
        self._image: Image | None = None
        self._layer: Any = None
        self.setMinimumWidth(_WIDTH)
        self.setMaximumWidth(_WIDTH * 5 // 4)
        box = QVBoxLayout(self)
        box.addWidget(self._make_facts())
        box.addWidget(self._make_display())
        box.addWidget(self._make_cache())
        box.addWidget(self._make_others())
        self._faster = FasterGroup(viewer)
        box.addWidget(self._faster)
        box.addStretch(1)
        viewer.layers.selection.events.active.connect(self._on_active)
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._show_what_changes)
        self._timer.start(_REFRESH_MS)
        self._others.setVisible(False)
        self._on_active()

    def closeEvent(self, event: Any) -> None:
        """Stop looking at the viewer."""
        self._timer.stop()
        self._faster.stop()
        self._viewer.layers.selection.events.active.disconnect(self._on_active)
        super().closeEvent(event)

    # What the parts are made of.

    def _make_facts(self) -> QWidget:
        group = QGroupBox("Image")
        self._facts = QLabel()
        self._facts.setWordWrap(True)
        self._facts.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        box = QVBoxLayout(group)
        box.addWidget(self._facts)
        return group

    def _make_display(self) -> QWidget:
        group = QGroupBox("Display")
        form = QFormLayout(group)
        self._level = QComboBox()
        self._level.setToolTip("Automatic takes the level that suits the zoom.")
        self._level.activated.connect(self._on_level)
        form.addRow("Level", self._level)
        self._budget = QSpinBox()
        self._budget.setRange(1, 1 << 20)
        self._budget.setSuffix(" MiB")
        self._budget.setValue(self._attendant.budget_nbytes >> 20)
        self._budget.setKeyboardTracking(False)
        self._budget.setToolTip("In 3-D, the finest level is shown that takes no more a channel.")
        self._budget.valueChanged.connect(lambda n: self._attendant.set_budget(n << 20))
        form.addRow("3-D budget", self._budget)
        self._async = QCheckBox("Do not wait for reads")
        self._async.setToolTip(
            "napari's setting 'Render Layers Asynchronously': the window stays responsive while "
            "planes are read."
        )
        self._async.setChecked(_async_setting())
        self._async.toggled.connect(_set_async)
        form.addRow("", self._async)
        return group

    def _make_cache(self) -> QWidget:
        group = QGroupBox("Decoded chunks kept")
        self._used = QProgressBar()
        clear = QPushButton("Clear")
        clear.setToolTip("Give the memory back. What is looked at next is decoded again.")
        clear.clicked.connect(self._on_clear)
        row = QHBoxLayout()
        row.addWidget(self._used, 1)
        row.addWidget(clear)
        self._last = QLabel()
        self._last.setWordWrap(True)
        self._last.setToolTip("Of the process, whoever asked for it.")
        box = QVBoxLayout(group)
        box.addLayout(row)
        box.addWidget(self._last)
        return group

    def _make_others(self) -> QWidget:
        self._others = QGroupBox("Other images of the file")
        self._names = QComboBox()
        add = QPushButton("Open")
        add.clicked.connect(self._on_open)
        row = QHBoxLayout(self._others)
        row.addWidget(self._names, 1)
        row.addWidget(add)
        return self._others

    # What happens.

    def _on_active(self, event: Any = None) -> None:
        layer = self._viewer.layers.selection.active
        image = image_of(layer)
        changed = image is not self._image
        self._layer, self._image = layer, image
        self._faster.set_image(image)
        self._facts.setText(facts_html(image) if image else "Select a layer of an HDF5 image.")
        self._level.clear()
        self._level.setEnabled(image is not None and len(image.levels) > 1)
        if image is not None:
            self._level.addItem("automatic", None)
            for level in image.levels:
                sizes = " × ".join(map(str, level.shape))
                computed = ", computed" if level.computed else ""
                self._level.addItem(f"{level.number}: {sizes}{computed}", level.number)
        if changed:
            others = other_images(image) if image else []
            self._names.clear()
            self._names.addItems(others)
            self._others.setVisible(bool(others))
        self._show_what_changes()

    def _on_level(self, index: int) -> None:
        if self._layer is not None and self._image is not None:
            set_level(self._layer, self._level.itemData(index))

    def _on_clear(self) -> None:
        cache.clear()
        self._show_cache()

    def _on_open(self) -> None:
        from napari.layers import Layer

        if self._image is None:
            return
        layout, axes, _, physical = self._image.request
        name = self._names.currentText()
        image = open_image(self._image.file, layout, axes=axes, image=name, physical=physical)
        for data in image_layers(image, title=name):
            self._viewer.add_layer(Layer.create(*data))

    def _show_what_changes(self) -> None:
        """Show what others may have changed: napari's own control of the level, 3-D, reads."""
        layer = self._layer
        if self._level.isEnabled() and not self._level.view().isVisible():
            locked = getattr(layer, "locked_data_level", None)
            self._level.setItemText(0, f"automatic: now {layer.data_level}")
            self._level.setCurrentIndex(0 if locked is None else locked + 1)
        if self._async.isChecked() != _async_setting():
            self._async.setChecked(_async_setting())
        self._show_cache()

    def _show_cache(self) -> None:
        most = max(1, limits.cache_nbytes)
        # In mebibytes: Qt counts with 32 bits.
        self._used.setRange(0, max(1, most >> 20))
        self._used.setValue(min(cache.nbytes(), most) >> 20)
        self._used.setFormat(f"{human_nbytes(cache.nbytes())} of {human_nbytes(most)}")
        self._last.setText(stats_words(last_stats()))


def other_images(image: Image) -> list[str]:
    """Return the names of the other images of its file."""
    series, wanted = image.series, image.request[2]
    own = series[wanted or 0] if not isinstance(wanted, str) and series else wanted
    return [name for name in series if name != own]


def facts_html(image: Image) -> str:
    """Return what a person wants to know of an image, as Qt's rich text. Reads metadata only."""
    finest = image.levels[0]
    size = f"{sizes_text(image.axes, image.shape)}, {finest.dtype}, {human_nbytes(finest.nbytes)}"
    rows = {
        "File": os.path.basename(image.file),
        "Layout": image.layout + (f", “{image.name}”" if image.name else ""),
        "Size": size,
        "Pixel": pixel_words(image),
    }
    try:
        rows["Chunks"] = " × ".join(map(str, finest.chunks))
        rows["Stored"] = storage_words(image)
        below = plane_words(finest)
    except (HyperslabError, OSError) as error:
        below = str(error)  # the image can be described, and its first dataset cannot be read
    cells = "".join(
        f'<tr><td style="padding-right:8px"><b>{head}</b></td><td>{_broken(text)}</td></tr>'
        for head, text in rows.items()
        if text
    )
    return f"<table>{cells}</table><p>{_broken(below)}</p>"


def _broken(text: str) -> str:
    """Return text as HTML whose long words, names of files for instance, may go over lines."""
    words = (re.sub("(.{12})", "\\1\u200b", word) for word in text.split(" "))
    return html.escape(" ".join(words))


def pixel_words(image: Image) -> str:
    """Return the size of a pixel, e.g. "2 × 0.125 × 0.125 µm"; "" for one that has none."""
    space = [axis for axis, letter in enumerate(image.axes) if letter in "ZYX"]
    given, steps = [image.units[axis] for axis in space], [image.scale[axis] for axis in space]
    if not any(given):
        return ""
    sizes, units = [], []
    for step, unit, (handy, factor) in zip(steps, given, handy_units(given, steps), strict=True):
        sizes.append(f"{step * factor:.4g}")
        units.append((unit if factor == 1 else handy).replace("um", "µm"))
    if len(set(units)) == 1:
        return f"{' × '.join(sizes)} {units[0]}"
    return " × ".join(f"{size} {unit}".strip() for size, unit in zip(sizes, units, strict=True))


def stats_words(stats: ReadStats) -> str:
    """Return what a read did, as a line; "" before there was one."""
    if not stats.bytes_returned:
        return ""
    chunks = "1 chunk" if stats.chunks_decoded == 1 else f"{stats.chunks_decoded:,} chunks"
    return (
        f"Last read: {human_nbytes(stats.bytes_returned)} in {1e3 * stats.seconds:.3g} ms; "
        f"{chunks} decoded, {stats.chunks_cached:,} from the cache"
    )


def _async_setting() -> bool:
    from napari.settings import get_settings

    return bool(get_settings().experimental.async_)


def _set_async(wanted: bool) -> None:
    from napari.settings import get_settings

    get_settings().experimental.async_ = wanted
