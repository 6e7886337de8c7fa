"""A folder with its own `params.yaml` for running stages."""

from pathlib import Path

import yaml
from pydantic import TypeAdapter

from stages.params.experiment import DatasetSource

REPOSITORY = Path(__file__).resolve().parents[2]


def write_params(folder: Path, profile: str, **datasets: DatasetSource) -> None:
    """Write the repository's `params.yaml` with one of its profiles, these data sets and no experiment."""
    params = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    schema = TypeAdapter(DatasetSource)
    params["profile"] = profile
    params["experiments"] = {}
    params["datasets"] = {name: schema.dump_python(source, mode="json") for name, source in datasets.items()}
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
