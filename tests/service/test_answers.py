"""Descriptions of what models return, for images of any size and networks with any number of outputs."""

import base64
import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from service.database.schemas import MaskAnswerOut
from service.inference.engine import describe_answer
from tests.service.test_batching import CONTRACT


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 256), st.integers(0, 2**32 - 1))
def test_mask_is_read_back_with_its_shares(height: int, width: int, classes: int, seed: int) -> None:
    mask = np.random.default_rng(seed).integers(0, classes, (height, width), dtype=np.uint8)
    contract = dataclasses.replace(CONTRACT, kind="segmentation", shape=(1, height, width))
    answer = describe_answer("a.b.0", contract, mask, 5)
    assert isinstance(answer, MaskAnswerOut)
    with Image.open(io.BytesIO(base64.b64decode(answer.mask))) as image:
        assert np.asarray(image).tolist() == mask.tolist()
        shown = np.asarray(image.convert("RGB")).reshape(-1, 3)
    shares = [row.share for row in answer.shares]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)
    assert {row.index: row.colour for row in answer.shares} == {
        int(index): f"#{bytes(colour.tolist()).hex()}" for index, colour in zip(mask.reshape(-1), shown, strict=True)
    }
    assert len({row.colour for row in answer.shares}) == len(shares), "no two classes have one colour"


@pytest.mark.parametrize("kind", ["images", "multi-label", "regression"])
def test_output_beyond_the_classes_has_its_number_as_name(kind: Any) -> None:
    contract = dataclasses.replace(CONTRACT, kind=kind)
    (rows,) = (
        value
        for value in vars(describe_answer("a.b.0", contract, np.array([0.3, 0.5, 0.2]), 5)).values()
        if isinstance(value, list)
    )
    assert sorted(row.name for row in rows) == ["maximum", "mean", "output 2"]
