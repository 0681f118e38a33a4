"""A napari window of its own, for the command line."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hyperslab.errors import MissingExtraError, OutputError
from hyperslab.image import Image
from hyperslab.napari.attendant import attend
from hyperslab.napari.layers import METADATA, LayerData
from hyperslab.napari.reader import layers_of_images

if TYPE_CHECKING:
    import napari

__all__ = ["open_window", "require_napari", "require_screen", "show", "wait_until_drawn"]

_TITLE = "hyperslab"


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
    LayoutError
        None of the images can be shown.
    HyperslabError, OSError
        For a picture: something in sight cannot be read, or not in two minutes. There is no picture
        then.
    """
    if screenshot is not None and screenshot.suffix.lower() != ".png":
        raise OutputError(f"{screenshot}: pictures are PNG. Give a name ending in .png.")
    layers = layers_of_images(images, titled=len(images) > 1)
    require_napari()
    require_screen()
    if screenshot is not None:
        _save(screenshot, layers, widget=widget)
        return
    import napari

    _open(layers, widget=widget)
    napari.run()


def _save(path: Path, layers: Sequence[LayerData], *, widget: bool) -> None:
    """Save a picture of a window in one step, once all is drawn."""
    from napari.utils.notifications import notification_manager

    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}.png")
    told = len(notification_manager.records)
    # Nobody is there who could read what napari would print, or show above the picture.
    with notification_manager.notification_ready.blocker():
        viewer = _open(layers, widget=widget)
        try:
            wait_until_drawn(viewer)
            for record in notification_manager.records[told:]:
                error = getattr(record, "exception", None)
                if error is not None:
                    raise error
            viewer.screenshot(str(temporary), canvas_only=False, flash=False)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
            viewer.close()


def open_window(images: Sequence[Image], *, widget: bool = True) -> napari.Viewer:
    """Return a viewer that shows `images`, one layer a channel."""
    return _open(layers_of_images(images, titled=len(images) > 1), widget=widget)


def _open(layers: Sequence[LayerData], *, widget: bool) -> napari.Viewer:
    import napari
    from napari.layers import Layer
    from qtpy.QtWidgets import QApplication

    from hyperslab.napari.widget import HyperslabWidget

    viewer = napari.Viewer(title=f"{_title(layers)} - {_TITLE}")
    attend(viewer)
    for data in layers:
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


def wait_until_drawn(viewer: napari.Viewer, *, patience_s: float = 120.0) -> None:
    """Return when every layer has what it shows, and the window has drawn it.

    Raises
    ------
    TimeoutError
        Something is still being read after `patience_s` seconds; it is an OSError.
    """
    from qtpy.QtWidgets import QApplication

    deadline = time.monotonic() + patience_s
    calm = 0  # rounds in a row in which nothing was missing
    while calm < 5:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all that is in sight was read within {patience_s:g} seconds")
        QApplication.processEvents()
        calm = calm + 1 if _is_idle(viewer) else 0
        time.sleep(0.02)


def _is_idle(viewer: napari.Viewer) -> bool:
    """Tell whether nothing is being read; the window goes on meanwhile."""
    slicer = getattr(viewer, "_layer_slicer", None)
    if slicer is not None:
        try:
            slicer.wait_until_idle(timeout=0)
        except TimeoutError:
            return False
    return all(layer.loaded for layer in viewer.layers)


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
    name = os.environ.get("DISPLAY", "")
    if os.environ.get("WAYLAND_DISPLAY") or _answers(name):
        return
    problem = f"nothing answers at DISPLAY={name}" if name else "DISPLAY is not set"
    raise OutputError(
        f"There is no screen to open a window on ({problem}). On a server, install "
        "xvfb and run: xvfb-run -a hyperslab view FILE --screenshot OUT.png"
    )


def _answers(display: str) -> bool:
    """Tell whether an X server takes connections: at ":1" by its socket, at "host:1" by TCP."""
    host, colon, number = display.rpartition(":")
    number = number.partition(".")[0]
    if not colon or not number.isdecimal():
        return bool(display)  # in words that are Qt's to understand
    local = f"/tmp/.X11-unix/X{number}"
    for address in (local, "\0" + local) if host in ("", "unix") else ((host, 6000 + int(number)),):
        kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with socket.socket(kind, socket.SOCK_STREAM) as trial:
            trial.settimeout(5)
            try:
                trial.connect(address)
            except OSError:
                continue
            return True
    return False


def _title(layers: Sequence[LayerData]) -> str:
    files = (keywords["metadata"][METADATA].file for _, keywords, _ in layers)
    return ", ".join(dict.fromkeys(map(os.path.basename, files)))
