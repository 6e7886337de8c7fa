import runpy
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
INSTALLED = ("brownian_timm", "dac_resnet", "hyperbf_timm", "ninformer_timm", "rbf_scipy")
"""Files whose origin is a package in the locks."""


@pytest.mark.parametrize(
    "name", ["dac_loops", *(pytest.param(name, marks=pytest.mark.slow(hours=True)) for name in INSTALLED)]
)
def test_stored_vectors_equal_their_makers_output(name: str) -> None:
    maker = runpy.run_path(str(HERE / ("make_timm.py" if name.endswith("_timm") else f"make_{name}.py")))
    fresh = maker["MAKERS"][name]() if name.endswith("_timm") else maker["make_vectors"]()
    with np.load(HERE / f"{name}.npz") as stored:
        assert fresh.keys() == {*stored}
        for key in fresh.keys() - {"origin"}:
            np.testing.assert_allclose(fresh[key], stored[key], rtol=1e-9, atol=1e-9, err_msg=key)
