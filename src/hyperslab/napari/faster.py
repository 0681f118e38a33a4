"""The part "Make it fast" of the widget: an image written anew while one goes on looking at it."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from qtpy.QtCore import QCoreApplication, QObject, Signal  # type: ignore[attr-defined, unused-ignore]
from qtpy.QtWidgets import (
    QComboBox,
    QFileDialog,
    QGroupBox,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
)

from hyperslab.exports.text import human_nbytes
from hyperslab.image import Image, open_image
from hyperslab.napari.layers import image_layers

if TYPE_CHECKING:
    import napari

__all__ = ["FasterGroup", "suggested_target"]

HDF5, ZARR = "hdf5", "zarr"
_ZARR_READER, _ZARR_MODULE = "napari-ome-zarr", "napari_ome_zarr"
_STAGES = {"encode": "Encoding", "write": "Writing", "verify": "Reading back"}
_PARTS = 1000  # of the progress bar: Qt counts with 32 bits

Progressed = Callable[[str, int, int], None]


class Rewriting(QObject):  # type: ignore[misc, unused-ignore]
    """A repack or a conversion in a thread of its own; its signals arrive in the window's thread.

    Parameters
    ----------
    image, form, target
        What is written, as "hdf5" or "zarr", and where.

    Attributes
    ----------
    progressed
        Signal: what is being done, and how much of it in thousandths.
    ended
        Signal: "done" or "cancelled", or else the words of an error.
    """

    progressed = Signal(str, int)
    ended = Signal(str)

    def __init__(self, image: Image, form: str, target: str) -> None:
        super().__init__()
        self.image, self.form, self.target = image, form, target
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hyperslab-rewriting")

    def start(self) -> None:
        """Begin, or go on with what was interrupted."""

        def show(words: str, done: int, total: int) -> None:
            self.progressed.emit(words, _PARTS * done // max(1, total))

        work = self._pool.submit(_write, self.image, self.form, self.target, show, self._cancelled)
        work.add_done_callback(self._tell)

    def cancel(self) -> None:
        """Have it stop soon; what it has done so far is gone on with the next time."""
        self._cancelled.set()

    def wait(self) -> None:
        """Return when it has ended."""
        self._pool.shutdown()

    def _tell(self, work: Future[Any]) -> None:
        error = work.exception()
        if error is not None:
            self.ended.emit(str(error) or repr(error))
        else:
            self.ended.emit("cancelled" if work.result() is None else "done")


def _write(
    image: Image, form: str, target: str, show: Progressed, cancelled: threading.Event
) -> Any:
    """Return the report, None if it was cancelled."""
    if form == ZARR:
        from hyperslab.conversion import convert

        return convert(
            image,
            target,
            resume=True,
            progress=lambda done, total: show("Writing", done, total),
            cancelled=cancelled,
        )
    from hyperslab.rewriting import Progress, repack

    def progress(now: Progress) -> None:
        show(_STAGES.get(now.stage, now.stage), now.done_nbytes, now.total_nbytes)

    layout, axes, _, _ = image.request
    return repack(
        image.file,
        target,
        for_="viewing",
        layout=layout,
        axes=axes,
        resume=True,
        progress=progress,
        cancelled=cancelled,
    )


def suggested_target(path: str, form: str) -> str:
    """Return a name beside a file that nothing has yet.

    Examples
    --------
    >>> suggested_target("/nowhere/cells.ims", "zarr")
    '/nowhere/cells.ome.zarr'
    """
    stem, extension = os.path.splitext(path)
    number = ""
    while True:
        found = f"{stem}{number}.ome.zarr" if form == ZARR else f"{stem}-fast{number}{extension}"
        if not os.path.lexists(found):
            return found
        number = f"-{int(number[1:] or 1) + 1}"


class FasterGroup(QGroupBox):  # type: ignore[misc, unused-ignore]
    """Chooses a form and a file, writes, shows how far it is, opens the result.

    Parameters
    ----------
    viewer
        That the result is opened in.
    """

    def __init__(self, viewer: napari.Viewer) -> None:
        super().__init__("Make it fast")
        self._viewer = viewer
        self._image: Image | None = None
        self.rewriting: Rewriting | None = None
        self._result: Rewriting | None = None
        self.form = QComboBox()
        self.form.addItem("HDF5, chunks for planes", HDF5)
        self.form.addItem("OME-Zarr", ZARR)
        self.form.setToolTip(
            "Written anew with chunks that suit looking at planes, and all coarser levels. "
            "The file is only read."
        )
        self.write = QPushButton("Write…")
        self.write.clicked.connect(self._on_write)
        self.bar = QProgressBar()
        self.bar.setRange(0, _PARTS)
        self.cancel = QPushButton("Cancel")
        self.cancel.clicked.connect(self._on_cancel)
        self.words = QLabel()
        self.words.setWordWrap(True)
        self.open = QPushButton("Open it")
        self.open.clicked.connect(self._on_open)
        above, below = QHBoxLayout(), QHBoxLayout()
        above.addWidget(self.form, 1)
        above.addWidget(self.write)
        below.addWidget(self.bar, 1)
        below.addWidget(self.cancel)
        box = QVBoxLayout(self)
        box.addLayout(above)
        box.addLayout(below)
        box.addWidget(self.words)
        box.addWidget(self.open)
        self._show_state(running=False)
        app = QCoreApplication.instance()
        if app is not None:
            app.aboutToQuit.connect(self.stop)

    def set_image(self, image: Image | None) -> None:
        """Say what would be written."""
        self._image = image
        self.write.setEnabled(image is not None and self.rewriting is None)

    def begin(self, target: str) -> None:
        """Write the image to `target`."""
        if self._image is None or self.rewriting is not None:
            return
        self.rewriting = Rewriting(self._image, self.form.currentData(), target)
        self.rewriting.progressed.connect(self._on_progressed)
        self.rewriting.ended.connect(self._on_ended)
        self._show_state(running=True)
        self.rewriting.start()

    def stop(self) -> None:
        """Cancel what is going on, and return when it has ended."""
        if self.rewriting is not None:
            self.rewriting.cancel()
            self.rewriting.wait()

    def _on_write(self) -> None:
        if self._image is None:
            return
        form = self.form.currentData()
        target, _ = QFileDialog.getSaveFileName(
            self,
            "Write the image to",
            suggested_target(self._image.file, form),
            # What is there already is refused in any case.
            options=QFileDialog.Option.DontConfirmOverwrite,
        )
        if target:
            self.begin(target)

    def _on_cancel(self) -> None:
        if self.rewriting is not None:
            self.cancel.setEnabled(False)
            self.rewriting.cancel()

    def _on_progressed(self, words: str, done: int) -> None:
        self.words.setText(words)
        self.bar.setValue(done)

    def _on_ended(self, how: str) -> None:
        ended, self.rewriting = self.rewriting, None
        if ended is None:
            return
        ended.wait()
        self._show_state(running=False)
        name = os.path.basename(ended.target)
        if how == "done":
            self._result = ended
            readable = ended.form == HDF5 or importlib.util.find_spec(_ZARR_MODULE) is not None
            how_to = "" if readable else f" To open it in napari: pip install {_ZARR_READER}"
            self.words.setText(f"{name}: {human_nbytes(_nbytes_on_disk(ended.target))}.{how_to}")
            self.open.setVisible(readable)
        elif how == "cancelled":
            self.words.setText(f"Cancelled. Writing {name} again goes on from there.")
        else:
            self.words.setText(how)

    def _on_open(self) -> None:
        result = self._result
        if result is None:
            return
        if result.form == ZARR:
            self._viewer.open(result.target, plugin=_ZARR_READER)
            return
        from napari.layers import Layer

        layout, axes, name, physical = result.image.request
        image = open_image(result.target, layout, axes=axes, image=name, physical=physical)
        title = os.path.splitext(os.path.basename(result.target))[0]
        for data in image_layers(image, title=title):
            self._viewer.add_layer(Layer.create(*data))

    def _show_state(self, *, running: bool) -> None:
        self.form.setEnabled(not running)
        self.write.setEnabled(not running and self._image is not None)
        self.bar.setVisible(running)
        self.bar.setValue(0)
        self.cancel.setVisible(running)
        self.cancel.setEnabled(running)
        self.open.setVisible(False)
        self.words.setText("")


def _nbytes_on_disk(path: str) -> int:
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )
