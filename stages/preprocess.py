"""`python -m stages.preprocess <dataset>`: convert the raw files to the packed set `data/processed/<dataset>/`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from stages.datasets.manifest import read_manifest
from stages.datasets.packed import Kind
from stages.datasets.prepare import prepare
from stages.datasets.sources import find_source
from stages.faults import in_one_line
from stages.params.experiment import load_params
from stages.params.stage_inputs import refuse_changed
from stages.runs.store import home

UNITS: dict[Kind, str] = {"images": "images", "table": "rows", "text": "tokens"}


@in_one_line("preprocess")
def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m stages.preprocess", description=__doc__)
    parser.add_argument("dataset")
    dataset = parser.parse_args(arguments).dataset
    source = find_source(load_params().datasets, dataset)
    manifest = read_manifest(Path("data/raw") / f"{dataset}.json")
    info = prepare(source, manifest, home(), Path("data/processed") / dataset)
    left_out = f", {info.excluded_test_images} left out" if info.excluded_test_images else ""
    print(
        f"preprocess: {dataset}: {info.provenance}, {info.train_images:,} training and "
        f"{info.test_images:,} test {UNITS[info.kind]}{left_out}, digest {info.digest[:12]}"
    )
    if info.split_note is not None:
        print(f"preprocess: {dataset}: {info.split_note}")
    return 1 if refuse_changed("preprocess") else 0


if __name__ == "__main__":
    sys.exit(main())
