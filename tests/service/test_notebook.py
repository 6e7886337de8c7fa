"""docs/notebook.ipynb runs unchanged; CLAIMCHECK_WRITE=1 rewrites its answers and pictures."""

import base64
import io
import json
import os
from contextlib import redirect_stdout
from typing import Any

import matplotlib
import pytest

from tests.project import REPOSITORY
from tests.service.running import Running

NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"
MOST_BYTES = 200_000


def outputs_of(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return its output and its pictures as a notebook stores them."""
    from matplotlib import pyplot

    printed, found = io.StringIO(), list[dict[str, Any]]()
    with redirect_stdout(printed):
        exec(compile(source, str(NOTEBOOK), "exec"), names)
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)})
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_notebook_runs_and_its_stored_outputs_are_current(published_service: Running) -> None:
    matplotlib.use("agg")
    notebook, names = json.loads(NOTEBOOK.read_text(encoding="utf-8")), dict[str, Any]()
    is_rewritten = bool(os.environ.get("CLAIMCHECK_WRITE"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("http://127.0.0.1:8000", published_service.address)
            found = outputs_of(source, names)
            if is_rewritten:
                cell["outputs"] = found
            assert [one["output_type"] for one in cell["outputs"]] == [one["output_type"] for one in found]
    if is_rewritten:
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert NOTEBOOK.stat().st_size < MOST_BYTES
