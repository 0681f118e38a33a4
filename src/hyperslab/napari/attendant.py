"""Our layers in a viewer: what a reader cannot say, done when they arrive.

A layer's data level in 3-D (napari takes the coarsest, we the finest that fits a budget), the range
of its contrast slider, and that labels in a file are not painted on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from hyperslab.image import Image
from hyperslab.napari.layers import METADATA
from hyperslab.viewing import volume_level

if TYPE_CHECKING:
    from collections.abc import Iterator

    import napari

__all__ = ["DEFAULT_BUDGET_NBYTES", "Attendant", "attend", "image_of"]

# Of one channel at one time point: it goes to the graphics card as a whole, a second or less of
# decoding.
DEFAULT_BUDGET_NBYTES = 256 << 20
# Along any axis: what every graphics card takes as a 3-D texture. napari would drop pixels.
_MOST_PIXELS = 2048


def image_of(layer: Any) -> Image | None:
    """Return the image that a layer shows; None for layers of others."""
    found = layer.metadata.get(METADATA) if layer is not None else None
    return found if isinstance(found, Image) else None


class Attendant:
    """Looks after our layers in one viewer, for as long as the viewer lives.

    Attributes
    ----------
    budget_nbytes
        Most bytes of a volume in 3-D, of one channel at one time point; the coarsest level is shown
        whatever its size. Set it with `set_budget`.
    """

    def __init__(self, viewer: napari.Viewer) -> None:
        self._viewer = viewer
        self.budget_nbytes = DEFAULT_BUDGET_NBYTES
        viewer.layers.events.inserted.connect(self._on_inserted)
        # First of all, so that napari does not draw a volume at another level before.
        viewer.dims.events.ndisplay.connect(self._on_ndisplay, position="first")
        for layer in viewer.layers:
            self._receive(layer)

    def set_budget(self, nbytes: int) -> None:
        """Show volumes of at most `nbytes`, from now on."""
        self.budget_nbytes = nbytes
        self._on_ndisplay()

    def _ours(self) -> Iterator[tuple[Any, Image]]:
        for layer in self._viewer.layers:
            image = image_of(layer)
            if image is not None:
                yield layer, image

    def _on_inserted(self, event: Any) -> None:
        self._receive(event.value)

    def _receive(self, layer: Any) -> None:
        image = image_of(layer)
        if image is None:
            return
        if hasattr(layer, "contrast_limits"):
            low, high = slider_range(layer.contrast_limits, image.dtype)
            layer.contrast_limits_range = low, high
        else:
            layer.editable = False
        if self._viewer.dims.ndisplay == 3:
            self._lock(layer, image)

    def _on_ndisplay(self, event: Any = None) -> None:
        volume = self._viewer.dims.ndisplay == 3
        for layer, image in self._ours():
            if volume:
                self._lock(layer, image)
            else:
                set_level(layer, None)

    def _lock(self, layer: Any, image: Image) -> None:
        set_level(layer, shown_level(image, self.budget_nbytes))


def shown_level(image: Image, budget_nbytes: int) -> int:
    """Return the level to show as a volume: the finest within the budget and within 2048 pixels."""
    number = volume_level(image, budget_nbytes)
    space = [axis for axis, letter in enumerate(image.axes) if letter in "ZYX"]
    for level in image.levels[number:]:
        if all(level.shape[axis] <= _MOST_PIXELS for axis in space):
            return level.number
    return len(image.levels) - 1


def set_level(layer: Any, number: int | None) -> None:
    """Have a layer show one level only; None: the one that suits the zoom. Needs napari 0.7.1."""
    if layer.multiscale and hasattr(layer, "locked_data_level"):
        layer.locked_data_level = number


def slider_range(limits: tuple[float, float], dtype: np.dtype) -> tuple[float, float]:
    """Return a range for the contrast slider: around the limits, as wide as it is handy.

    Examples
    --------
    >>> slider_range((100, 300), np.dtype("u2"))
    (0.0, 700.0)
    """
    if dtype.kind == "b":
        return 0.0, 1.0
    low, high = (float(limit) for limit in limits)
    width = high - low
    found = min(low - width, 0.0), high + 2 * width
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return max(found[0], float(info.min)), min(found[1], float(info.max))
    return found


_attendants: WeakKeyDictionary[Any, Attendant] = WeakKeyDictionary()


def attend(viewer: Any) -> Attendant:
    """Return the viewer's attendant; the first call makes it."""
    viewer = getattr(viewer, "__wrapped__", viewer)  # what a widget is given stands for the viewer
    found = _attendants.get(viewer)
    if found is None:
        found = _attendants[viewer] = Attendant(cast("napari.Viewer", viewer))
    return found
