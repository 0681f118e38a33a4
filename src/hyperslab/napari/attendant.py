"""Our layers in a viewer: what a reader cannot say, done when they arrive.

A layer's data level in 3-D (napari takes the coarsest, we the finest that fits a budget), the range
of its contrast slider, and that labels in a file are not painted on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from hyperslab.image import Image
from hyperslab.napari.layers import METADATA

if TYPE_CHECKING:
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
        Most bytes of a volume in 3-D, of one channel, along the three axes that are shown; the
        coarsest level is shown whatever its size. Set it with `set_budget`.
    """

    def __init__(self, viewer: napari.Viewer) -> None:
        # Not held: the table of attendants holds this for as long as the viewer is there.
        self._viewer = ref(viewer)
        self.budget_nbytes = DEFAULT_BUDGET_NBYTES
        viewer.layers.events.inserted.connect(self._on_inserted)
        # First of all, so that napari does not draw a volume at another level before.
        viewer.dims.events.ndisplay.connect(self._on_dims, position="first")
        viewer.dims.events.order.connect(self._on_dims, position="first")
        for layer in viewer.layers:
            self._receive(layer)

    def set_budget(self, nbytes: int) -> None:
        """Show volumes of at most `nbytes`, from now on."""
        self.budget_nbytes = nbytes
        self._on_dims()

    def _on_inserted(self, event: Any) -> None:
        self._receive(event.value)

    def _receive(self, layer: Any) -> None:
        image = image_of(layer)
        viewer = self._viewer()
        if image is None or viewer is None:
            return
        if hasattr(layer, "contrast_limits"):
            low, high = slider_range(layer.contrast_limits, image.dtype)
            layer.contrast_limits_range = low, high
        else:
            layer.editable = False
        if viewer.dims.ndisplay == 3:
            self._lock(layer, viewer)

    def _on_dims(self, event: Any = None) -> None:
        """Lock our layers at the level for 3-D; in 2-D, leave the level to the zoom."""
        viewer = self._viewer()
        if viewer is None:
            return
        volume = viewer.dims.ndisplay == 3
        for layer in viewer.layers:
            if image_of(layer) is None:
                continue
            if volume:
                self._lock(layer, viewer)
            elif event is None or event.type == "ndisplay":
                set_level(layer, None)

    def _lock(self, layer: Any, viewer: napari.Viewer) -> None:
        if not layer.multiscale:
            return
        # A layer of fewer axes than the viewer has lies along the last ones.
        missing = viewer.dims.ndim - layer.ndim
        axes = [axis - missing for axis in viewer.dims.displayed if axis >= missing]
        shapes = [level.shape for level in layer.data]
        itemsize = layer.data[0].dtype.itemsize
        set_level(layer, shown_level(shapes, axes, itemsize, self.budget_nbytes))


def shown_level(
    shapes: Sequence[Sequence[int]], axes: Sequence[int], itemsize: int, budget_nbytes: int
) -> int:
    """Return the level to show as a volume, else the coarsest.

    The finest within the budget, and within 2048 pixels along each axis.

    Parameters
    ----------
    shapes
        Of the levels, finest first.
    axes
        The three that are shown: those in space, or time among them.
    itemsize
        Bytes of an element.
    budget_nbytes
        For the volume.

    Examples
    --------
    >>> shown_level([(9, 4096, 10), (9, 2048, 10), (9, 4, 2)], (0, 1, 2), 1, 1 << 30)
    1
    """
    for number, shape in enumerate(shapes):
        sides = [shape[axis] for axis in axes]
        if max(sides) <= _MOST_PIXELS and math.prod(sides) * itemsize <= budget_nbytes:
            return number
    return len(shapes) - 1


def set_level(layer: Any, number: int | None) -> None:
    """Have a layer show one level only; None: the one that suits the zoom. Needs napari 0.7.1."""
    if not layer.multiscale or not hasattr(layer, "locked_data_level"):
        return
    if layer.locked_data_level != number:  # setting it reads, whatever it was
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
        found = _attendants[viewer] = Attendant(viewer)
    return found
