"""Files beside an image that say what it is: BigDataViewer's xml."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from pathlib import Path, PurePath
from xml.etree import ElementTree

from hyperslab.errors import MetadataWarning
from hyperslab.index.session import session
from hyperslab.layouts import recognise
from hyperslab.layouts.bdv_xml import find_xml

__all__ = ["copy_companions"]


def copy_companions(source: Path, target: Path) -> None:
    """Write BigDataViewer's xml files for the copy of an HDF5 file, if the file has some.

    The copy's xml names the copy; nothing else in it changes. Colours and contrast
    (``NAME.settings.xml``) are copied as they are.

    Warns
    -----
    MetadataWarning
        Where there is such a file already: it stays.
    """
    with session(str(source)) as h5:
        if "bdv" not in recognise(h5):
            return
    found = find_xml(str(source))
    if found is None:
        return
    old = Path(found)
    tree = ElementTree.parse(old)
    for item in tree.iter("hdf5"):
        if PurePath((item.text or "").strip()).name == source.name:
            item.text = target.name
            item.set("type", "relative")
    for base in tree.iter("BasePath"):
        base.text = "."
    made = target.with_suffix(".xml")
    if _is_free(made):
        temporary = made.with_name(f".{made.name}-{secrets.token_hex(4)}.tmp")
        tree.write(temporary, encoding="UTF-8", xml_declaration=True)
        os.replace(temporary, made)
    settings = old.with_name(f"{old.stem}.settings.xml")
    copied = made.with_name(f"{made.stem}.settings.xml")
    if settings.exists() and _is_free(copied):
        temporary = copied.with_name(f".{copied.name}-{secrets.token_hex(4)}.tmp")
        shutil.copyfile(settings, temporary)
        os.replace(temporary, copied)


def _is_free(path: Path) -> bool:
    if not path.exists():
        return True
    warnings.warn(
        f"{path}: exists already, and stays. Delete it and repack again, or make sure that it fits "
        "the new file.",
        MetadataWarning,
        stacklevel=3,
    )
    return False
