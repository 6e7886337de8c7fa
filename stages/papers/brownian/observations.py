"""The walk inside a trained ViT, as the abstract and sections 3.1 and 3.2 describe it, measured by `walk`."""

from __future__ import annotations

from itertools import groupby
from statistics import fmean

from torch import Tensor, nn

from stages.papers import Observed, refuse_model
from stages.papers.brownian.vit import ViT
from stages.papers.brownian.walk import depth_rows, head_rows, motion_rows

MODELS = (ViT,)
OF_HEADS = ("self_probability", "second_eigenvalue", "dobrushin", "gaussian_distance")
OF_BLOCKS = ("norm_error", "share_of_sphere")


def observe(model: nn.Module, images: Tensor) -> Observed:
    """Return rows of `walk` by block and head, and one number per statement of the paper, averaged over both.

    `row_sum_error` is the largest one; `displacement_over_steps` is that of all blocks together.

    Raises:
        TypeError: the model is not this paper's ViT.
    """
    if not isinstance(model, ViT):
        raise refuse_model(model, MODELS)
    heads = head_rows(model, images)
    blocks = [row for row in depth_rows(model, images) if row["depth"]]
    moved = motion_rows(model, images)
    layers = {
        name: [
            [row[name] for row in rows]
            for rows in ((list(group) for _, group in groupby(heads, key=lambda row: row["block"])))
        ]
        for name in OF_HEADS
    }
    layers |= {name: [[row[name]] for row in blocks] for name in OF_BLOCKS}
    layers["displacement_over_steps"] = [[row["displacement_over_steps"]] for row in moved]
    numbers = {name: fmean(row[name] for row in heads) for name in OF_HEADS}
    numbers |= {name: fmean(row[name] for row in blocks) for name in OF_BLOCKS}
    numbers["row_sum_error"] = max(row["row_sum_error"] for row in heads)
    numbers["displacement_over_steps"] = moved[-1]["displacement_over_steps"]
    return Observed(numbers=numbers, layers=layers, images=len(images))
