"""`python -m stages.fetch <dataset>`: download the raw files, verify them, and write `data/raw/<dataset>.json`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from stages.datasets.manifest import Manifest
from stages.datasets.sources import fetch_dataset, find_source, mirror_folder
from stages.faults import in_one_line
from stages.params.experiment import load_params
from stages.runs.store import home, write_atomically


@in_one_line("fetch")
def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m stages.fetch", description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--accept", action="store_true", help="accept replaced files that have no published digest")
    options, params = parser.parse_args(arguments), load_params()
    dataset = options.dataset
    source = find_source(params.datasets, dataset)
    if params.profile.data == "embedded":
        manifest = Manifest(dataset=dataset, source="embedded")
    else:
        manifest = fetch_dataset(dataset, source, home(), mirror_folder(), accept=options.accept)
    write_atomically(Path("data/raw") / f"{dataset}.json", manifest.to_json())
    size_bytes = sum(file.bytes for file in manifest.files)
    print(f"fetch: {dataset}: {manifest.source}, {len(manifest.files)} files, {size_bytes / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
