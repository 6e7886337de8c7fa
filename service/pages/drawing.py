"""Drawings of a model's page, made on the server: learning curves and a confusion matrix."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from service.database.curves import SIDES, Curve, name_curve, unit_of_curve
from service.database.schemas import CurvePointOut
from service.pages.charts import draw_overlay
from service.pages.plots import Drawing, Ink

MOST_CELLS = 12  # classes whose matrix is a table; a larger one is a picture
TEAL = (38, 140, 143)  # readable on both pages
INKS = {"test": Ink("#268c8f", ""), "validation": Ink("#8a62c4", "6 4"), "training": Ink("#7d8380", "2 3")}
"""Lines of the parts of the data: teal is ours, and dashes tell them apart without colours."""


def draw_curves(curves: Mapping[Curve, Sequence[CurvePointOut]], kind: str) -> list[tuple[str, Drawing]]:
    """Accuracy and loss, as far as they were measured, each with its title."""
    found = []
    for what in ("accuracy", "loss"):
        names = [name for name, points in curves.items() if name.endswith(what) and points]
        sides = {name: SIDES[name.partition("_")[0]] for name in names}
        points = [point.model_copy(update={"arm": sides[name]}) for name in names for point in curves[name]]
        unit = unit_of_curve(names[0], kind) if names else ""
        if drawn := draw_overlay(points, {side: side for side in sides.values()}, INKS, unit):
            title = name_curve(names[0], kind).partition(" ")[2]
            found.append((title + (f" ({unit})" if unit not in ("", "fraction") else ""), drawn))
    return found


def shade(confusion: np.ndarray) -> list[list[int]]:
    """Grade the shade of each cell of a small matrix from 0 to 5, by its share of the true class."""
    return [[math.ceil(5 * math.sqrt(share)) for share in row] for row in _shares(confusion)]


def picture_of(confusion: np.ndarray) -> str:
    """A large matrix as the address of a picture: one pixel a cell, true classes down, answers across."""
    pixels = np.empty((*confusion.shape, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = TEAL, np.round(255 * np.sqrt(_shares(confusion)))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _shares(confusion: np.ndarray) -> np.ndarray:
    """Each cell as a share of its true class, [K, K]; 0 of a class without images."""
    return confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
