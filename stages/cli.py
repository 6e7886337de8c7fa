"""The `claimcheck` command."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from PIL import Image

from stages.datasets.packed import PackedDataError, read_images, read_info
from stages.evidence import EvidenceError
from stages.experiment import ParamsError, describe_cut, load_params
from stages.publishing import PublishError, publish
from stages.runner import assignments, find_experiment
from stages.store import RunStore, home, write_atomically

_DATA = Path("data")


def show_plan(names: list[str]) -> None:
    """Print what each experiment has in the store and what it would train."""
    params = load_params()
    store = RunStore(home() / "store")
    print(f"profile {params.profile_name}")
    for name in names or params.experiments:
        experiment = find_experiment(params, name)
        cut = describe_cut(experiment, params.profile, params.datasets[experiment.dataset])
        try:
            digest = read_info(_DATA / "processed" / experiment.dataset).digest
        except PackedDataError:
            print(f"{name}: {experiment.dataset} is not packed yet ({cut or 'as printed'})")
            continue
        runs = assignments(experiment, params, digest)
        stored = sum(store.published(run.spec.run_key) is not None for run in runs)
        print(f"{name}: {len(runs)} runs, {stored} in the store, {len(runs) - stored} to train ({cut or 'as printed'})")


def set_profile(name: str) -> None:
    """Rewrite the `profile:` line of params.yaml, and nothing else in it."""
    params = load_params()
    if name not in params.profiles:
        raise ParamsError(f"no profile {name!r}; known: {', '.join(params.profiles)}")
    path = Path("params.yaml")
    text, count = re.subn(r"(?m)^profile:.*$", f"profile: {name}", path.read_text())
    assert count == 1, "load_params has read the line"
    write_atomically(path, text.encode())
    print(f"params.yaml: profile {name}")


def write_sample(dataset: str, index: int, output: Path | None) -> None:
    """Write a test image of a packed data set as PNG, and say what it shows."""
    folder = _DATA / "processed" / dataset
    info, test_set = read_info(folder), read_images(folder, "test")
    if not 0 <= index < len(test_set):
        raise PackedDataError(f"{dataset} has {len(test_set)} test images; --index is {index}")
    pixels = test_set.images[index]
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    path = output or Path(f"{dataset}-{index}.png")
    image.save(path, "PNG")
    label = info.classes[test_set.labels[index]]
    print(f"{path}: test image {index} of {dataset} ({info.provenance} data), class {label}")


def publish_all(names: list[str]) -> None:
    """Publish the results of the experiments as evidence."""
    for name in names:
        done = publish(name, Path())
        print(f"{done.path}: {done.lines} lines, {done.new} new; commit it")


def release_models(experiment: str, arms: list[str]) -> None:
    """Put the published models of some arms into `data/models/`."""
    from stages.checkpoint import CheckpointError  # both bring torch, which no other command needs
    from stages.releasing import release

    try:
        released = release(experiment, arms, Path())
    except CheckpointError as error:
        raise PublishError(str(error)) from None
    for path in released:
        print(f"{path}: {path.stat().st_size:,} bytes; commit it with data/evidence/{experiment}.jsonl")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="claimcheck", description="Are the papers' numbers so?")
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="what is trained already and what is not")
    plan.add_argument("experiments", nargs="*")
    profile = commands.add_parser("profile", help="set the profile in params.yaml")
    profile.add_argument("name")
    sample = commands.add_parser("sample", help="write a test image to try /predict with")
    sample.add_argument("dataset")
    sample.add_argument("--index", type=int, default=0)
    sample.add_argument("--output", type=Path)
    evidence = commands.add_parser("publish", help="turn results on real data into committed evidence")
    evidence.add_argument("experiments", nargs="+")
    models = commands.add_parser("release", help="put published models into data/models/, rounded to float16")
    models.add_argument("experiment")
    models.add_argument("arms", nargs="+")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        match options.command:
            case "plan":
                show_plan(options.experiments)
            case "profile":
                set_profile(options.name)
            case "sample":
                write_sample(options.dataset, options.index, options.output)
            case "publish":
                publish_all(options.experiments)
            case "release":
                release_models(options.experiment, options.arms)
    except (ParamsError, PackedDataError, PublishError, EvidenceError) as error:
        print(f"claimcheck {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
