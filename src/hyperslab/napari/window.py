"""A napari window of its own, for the command line."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hyperslab.errors import MissingExtraError, OutputError
from hyperslab.image import Image
from hyperslab.napari.attendant import attend
from hyperslab.napari.layers import image_layers

if TYPE_CHECKING:
    import napari

__all__ = ["open_window", "require_napari", "require_screen", "show", "wait_until_drawn"]

_TITLE = "hyperslab"
_PATIENCE_S = 120.0


def show(
    images: Sequence[Image],
    *,
    screenshot: Path | None = None,
    widget: bool = True,
) -> None:
    """Show images in a window until it is closed; or save a picture of it and end.

    Parameters
    ----------
    images
        Of one file or several.
    screenshot
        PNG file to write; one that exists is replaced, in one step, once all is drawn.
    widget
        Dock the widget.

    Raises
    ------
    MissingExtraError
        napari or Qt is not installed.
    OutputError
        There is no screen to show a window on; or a name of a picture that does not end in .png.
    """
    if screenshot is not None and screenshot.suffix.lower() != ".png":
        raise OutputError(f"{screenshot}: pictures are PNG. Give a name ending in .png.")
    require_napari()
    require_screen()
    viewer = open_window(images, widget=widget)
    if screenshot is None:
        import napari

        napari.run()
        return
    wait_until_drawn(viewer)
    temporary = screenshot.with_name(f".{screenshot.stem}-{secrets.token_hex(4)}.png")
    try:
        viewer.screenshot(str(temporary), canvas_only=False, flash=False)
        os.replace(temporary, screenshot)
    finally:
        temporary.unlink(missing_ok=True)
        viewer.close()


def open_window(images: Sequence[Image], *, widget: bool = True) -> napari.Viewer:
    """Return a viewer that shows `images`, one layer a channel."""
    import napari
    from napari.layers import Layer
    from qtpy.QtWidgets import QApplication

    from hyperslab.napari.widget import HyperslabWidget

    viewer = napari.Viewer(title=f"{_title(images)} - {_TITLE}")
    attend(viewer)
    for image in images:
        title = image.name if len(images) > 1 else None
        for data in image_layers(image, title=title):
            viewer.add_layer(Layer.create(*data))
    if widget:
        viewer.window.add_dock_widget(HyperslabWidget(viewer), name="HDF5 image", area="right")
    viewer.window.resize(*_window_size())
    QApplication.processEvents()  # only now the canvas has its size
    viewer.reset_view()
    return viewer


def _window_size() -> tuple[int, int]:
    """Return what suits the screen, in Qt's pixels."""
    from qtpy.QtGui import QGuiApplication

    room = QGuiApplication.primaryScreen().availableSize()
    return min(1400, room.width()), min(900, room.height())


def wait_until_drawn(viewer: napari.Viewer) -> None:
    """Return when every layer has what it shows, and the window has drawn it."""
    from qtpy.QtWidgets import QApplication

    deadline = time.monotonic() + _PATIENCE_S
    calm = 0  # rounds in a row in which nothing was missing
    slicer = getattr(viewer, "_layer_slicer", None)
    while calm < 5 and time.monotonic() < deadline:
        QApplication.processEvents()
        if slicer is not None:
            slicer.wait_until_idle(timeout=_PATIENCE_S)
        calm = calm + 1 if all(layer.loaded for layer in viewer.layers) else 0
        time.sleep(0.02)


def require_napari() -> None:
    """Raise `MissingExtraError` unless napari and Qt are installed."""
    try:
        import napari  # noqa: F401
        import qtpy.QtWidgets  # noqa: F401
    except ImportError as error:
        name = error.name or ""
        if name and name.partition(".")[0] not in ("napari", "qtpy", "PySide6", "PyQt6", "PyQt5"):
            raise  # they are there, and something that they need is not
        raise MissingExtraError(
            "hyperslab view needs napari and Qt, which are not both installed here. Install them "
            "with: pip install 'hyperslab[napari]' (in a clone of it: pip install '.[napari]')",
            package="napari",
            extra="napari",
        ) from error


def require_screen() -> None:
    """Raise unless a window can be opened: Qt would end the process."""
    if sys.platform != "linux" or os.environ.get("QT_QPA_PLATFORM"):
        return
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        raise OutputError(
            "There is no screen to open a window on (DISPLAY is not set). On a server, install "
            "xvfb and run: xvfb-run -a hyperslab view FILE --screenshot OUT.png"
        )


def _title(images: Sequence[Image]) -> str:
    return ", ".join(dict.fromkeys(os.path.basename(image.file) for image in images))
