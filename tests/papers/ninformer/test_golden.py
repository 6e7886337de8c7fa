from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

MAKER = Path(__file__).parents[2] / "golden" / "make_ninformer_timm.py"


@pytest.mark.slow
def test_stored_vectors_are_what_the_installed_timm_gives(timm_vectors: dict[str, np.ndarray]) -> None:
    fresh = runpy.run_path(str(MAKER))["make_vectors"]()
    assert fresh.keys() == timm_vectors.keys()
    for name in fresh.keys() - {"origin"}:
        np.testing.assert_allclose(fresh[name], timm_vectors[name], rtol=0, atol=1e-9, err_msg=name)
