import runpy
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


@pytest.mark.slow(hours=True)
@pytest.mark.parametrize("name", ["brownian_timm", "dac_resnet", "hyperbf_timm", "ninformer_timm"])
def test_stored_vectors_equal_their_makers_output(name: str) -> None:
    """The makers import packages in the locks, which takes seconds."""
    maker = runpy.run_path(str(HERE / ("make_timm.py" if name.endswith("_timm") else f"make_{name}.py")))
    fresh = maker["MAKERS"][name]() if name.endswith("_timm") else maker["make_vectors"]()
    with np.load(HERE / f"{name}.npz") as stored:
        assert fresh.keys() == {*stored}
        for key in fresh.keys() - {"origin"}:
            np.testing.assert_allclose(fresh[key], stored[key], rtol=1e-9, atol=1e-9, err_msg=key)
