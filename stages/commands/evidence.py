"""Subcommands that publish, release, export, verify and audit results, compare code, and free disk space."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from rich.console import RenderableType

from stages.checkpoint.contract import CheckpointError
from stages.commands.command import DATABASE, Answer, Column, TextTable, UsageError, open_database
from stages.datasets.packed import PackedDataError, read_images, read_info
from stages.datasets.sources import find_source
from stages.faults import named
from stages.params.experiment import load_params
from stages.recording import append_only
from stages.recording.sources import lab_seeds
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.object_store import BLOBS, WORK, ObjectStore, open_store, store_folder
from stages.runs.revisions import is_full_clone, refusal
from stages.runs.store import STACK_PREFIX, RunStore, Store, home, members_of
from stages.scheduling.runner import find_experiment
from stages.upkeep.proving import compare_again, show_equivalent
from stages.upkeep.publishing import PublishError
from stages.upkeep.publishing import publish as publish_results
from stages.upkeep.publishing import release as release_published

if TYPE_CHECKING:
    from stages.upkeep import verifying

# If nothing was written for this long, files still marked as partial belong to a process that was killed.
ABANDONED_SECONDS = 3600.0


def disk_usage(root: Path) -> dict[str, int]:
    """Return the bytes used by each folder below `root`, and by the object store if there is one.

    A file with several names (hard links) counts for the first one.
    """
    store, local = open_store(root), store_folder(root)
    folder = store.root if isinstance(store, RunStore) else local
    places = {
        "downloads": root / home() / "downloads",
        "packed data": root / "data" / "processed",
        "run store": folder / "runs",
        "trainings under way": folder / "work",
        "read of object stores": local / "objects",
        "measurements": local / "evaluated",
        "outcomes of experiments": root / "data" / "runs",
        "DVC's cache": root / ".dvc" / "cache",
    }
    seen: set[tuple[int, int]] = set()
    sizes = dict.fromkeys(places, 0)
    for name, place in places.items():
        for path, _, files in os.walk(place):
            for file in files:
                status = os.stat(os.path.join(path, file), follow_symlinks=False)
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    sizes[name] += status.st_size
    if isinstance(store, ObjectStore):
        for name, prefix in (("outcomes", BLOBS), ("trainings under way", WORK)):
            sizes[f"{store.address}, {name}"] = sum(item.size_bytes for item in store.bucket.list(prefix))
    return sizes


def _is_done(work: str, store: Store) -> bool:
    """True if the run with this scratch is published; for a stack, if all of its runs are."""
    if not work.startswith(STACK_PREFIX):
        return store.has(work)
    members = members_of(work, store.scratch)
    return bool(members) and all(store.has(spec.run_key) for spec in members)


def remove_leftovers(root: Path) -> list[Path]:
    """Remove and return what a killed process left: half-written files, staged outcomes, states of runs that are done.

    Outcomes stay, and so does every state from which a training could resume.
    """
    asked, local = open_store(root), store_folder(root)
    store = asked if isinstance(asked, RunStore) else RunStore(local)
    found = [path for path in (store.root / "work").glob("*") if _is_done(path.name, store)]
    abandoned = [*store.root.glob("staged/*"), *local.glob("objects/*/staged/*")]
    abandoned += (root / "data").rglob(".*.partial*")
    for place in {store.root, local}:
        if not place.is_relative_to(root / "data"):
            abandoned += place.rglob(".*.partial*")
    found += [path for path in abandoned if time.time() - path.stat().st_mtime > ABANDONED_SECONDS]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # its folder may just have been removed
    return sorted(found)


def remove_objects(root: Path) -> list[str]:
    """Remove and return what killed processes left in the object store, if there is one: the same as in a folder.

    A file of an outcome stays if any record names it, published or about to be, or if it is young by the store's clock.
    """
    store = open_store(root)
    if not isinstance(store, ObjectStore):
        return []
    works = [work for work in store.scratch.list_works() if _is_done(work, store)]
    for work in works:
        store.scratch.drop(work)
    newest = store.bucket.now() - ABANDONED_SECONDS
    old = {item.name for item in store.bucket.list(BLOBS) if item.changed < newest}
    unnamed = sorted(old - store.named_blobs()) if old else []
    store.bucket.delete(unnamed)
    return [f"{store.address}/{name}" for name in [*(f"{WORK}/{work}" for work in works), *unnamed]]


_STATUSES = ("holds", "not here", "broken")
_SHOWN = 5
"""Number of broken trails that `verify` lists, so that it prints at most twenty lines."""


def publish(options: argparse.Namespace) -> Answer:
    """Publish the experiments' results as evidence."""
    params = load_params()
    experiments = [find_experiment(params, name) for name in options.experiments]
    done = [publish_results(experiment.name, Path()) for experiment in experiments]
    return Answer(
        document=[{"path": str(each.path), "lines": each.lines, "new": each.new} for each in done],
        shown=[f"{each.path}: {each.lines} lines, {each.new} new; commit it" for each in done],
    )


def contribute(options: argparse.Namespace) -> Answer:
    """Pack results for another clone; `--seeds` only lists the seeds that a lab adds to the planned ones."""
    from stages.upkeep import contributing  # loads SQLAlchemy

    params = load_params()
    names = [find_experiment(params, name).name for name in options.experiments] or [
        name for name in params.experiments if Path(f"data/results/{name}.jsonl").is_file()
    ]
    if options.seeds:
        seeds = {name: lab_seeds(options.lab, params.experiments[name].seeds) for name in names}
        return Answer(document=seeds, shown=[f"{name}: {found}" for name, found in seeds.items()])
    output = options.output or Path(f"{options.lab}.zip")
    lines = contributing.contribute(
        Path(), names, options.lab, output, key=options.sign, weights=options.weights, states=options.states
    )
    signed = "signed" if options.sign else "not signed"
    return Answer(
        document={"path": str(output), "lines": lines, "bytes": output.stat().st_size},
        shown=[f"{output}: {lines} lines of {options.lab}, {signed}, {output.stat().st_size:,} bytes"],
    )


def accept(options: argparse.Namespace) -> Answer:
    """Check a contribution, list how many checks of each kind held, and add it to the evidence."""
    from stages.upkeep import contributing, verifying  # loads SQLAlchemy

    lines, new, trails, note = contributing.accept(
        Path(), load_params(), options.file, options.lab, key=options.key, epochs=options.retrain, device=options.device
    )
    path = verifying.LAB_FILES / f"{options.lab}.jsonl"
    checked = list(map(_trail_document, trails))
    return Answer(
        document={"path": str(path), "lines": lines, "new": new, "checked": checked, "note": note},
        shown=[
            _table(_count_links(*(link for trail in trails for link in trail.links))),
            *filter(None, [note]),
            f"{path}: {lines} lines of {options.lab}, {new} new; commit {path.parent}",
        ],
    )


def export(options: argparse.Namespace) -> Answer:
    """Write results or released models in another tool's format."""
    from stages.upkeep import crate, exporting  # load SQLAlchemy

    params, root, folder = load_params(), Path(), options.folder
    experiments = [find_experiment(params, name).name for name in options.experiments] or [*params.experiments]
    if options.format == "crate":
        if options.experiments:
            raise UsageError("claimcheck export: a crate has every experiment; leave their names out")
        written = crate.write_crate(root, folder)
    else:
        with open_database()() as session:
            written = {
                "every-eval-ever": lambda: exporting.write_records(session, root, folder, experiments),
                "huggingface": lambda: exporting.write_models(session, root, folder, experiments),
                "trackio": lambda: exporting.write_logbook(session, folder, experiments),
            }[options.format]()
    counts = ", ".join(f"{number:,} {name}" for name, number in written.counts.items())
    return Answer(
        document={"folder": str(written.folder), **written.counts, "notes": [*written.notes]},
        shown=[f"{written.folder}: {counts}", *written.notes],
    )


def release(options: argparse.Namespace) -> Answer:
    """Copy the published models of some arms into `data/models/`."""
    name = find_experiment(load_params(), options.experiment).name
    try:
        released = {path: path.stat().st_size for path in release_published(name, options.arms, Path())}
    except CheckpointError as error:
        raise PublishError(str(error)) from None
    return Answer(
        document=[{"path": str(path), "bytes": size} for path, size in released.items()],
        shown=[f"{path}: {size:,} bytes; commit it with data/evidence/{name}.jsonl" for path, size in released.items()],
    )


def equivalent(options: argparse.Namespace) -> Answer:
    """Compare HEAD's code with an older revision's on all paths that evidence depends on; `--again` writes nothing."""
    stream = sys.stderr if options.json else sys.stdout
    shown = show_equivalent(
        Path(),
        load_params(),
        options.revision,
        steps=options.steps,
        again=options.again,
        plain=options.plain,
        say=lambda text: print(text, file=stream, flush=True),
    )
    if shown.line is None:
        last = (
            f"nothing to compare: for every run made by the code of {options.revision}, HEAD has the same code or an "
            "equivalence"
        )
    elif options.again:
        last = f"{len(shown.compared)} paths give the same; nothing is written"
    else:
        last = f"{EQUIVALENCES}: a line with {len(shown.compared)} paths; commit it"
    return Answer(
        document={
            "compared": list(shown.compared),
            "left_out": list(shown.left_out),
            "path": None if shown.line is None or options.again else str(EQUIVALENCES),
        },
        shown=[*(f"  {text}" for text in (*shown.compared, *shown.left_out)), last],
    )


def audit(options: argparse.Namespace) -> Answer:
    """Compare the published record with every commit of it; `--retract` first gives a reason for what is missing.

    The exit code is 1 if something committed is missing without a reason.
    """
    if words := refusal(Path()):
        raise PublishError(f"needs the project's git history: {words}; if this is an archive, clone the project")
    if not is_full_clone(Path()):
        raise PublishError("this clone is shallow and lacks part of the record; first run: git fetch --unshallow")
    versions, retracted = append_only.read_versions(Path()), 0
    if options.retract:
        retracted = append_only.retract(Path(), versions, date=f"{date.today()}", why=options.retract)
    lost = append_only.find_lost(Path(), versions)
    root = append_only.digest_history(versions)
    commits = len({version.commit for version in versions})
    shown = [f"{append_only.RETRACTIONS}: {retracted} lines retracted; commit it"] if options.retract else []
    shown += [f"  {one}" for one in lost]
    shown.append(f"{commits} commits of {len(versions)} files, {len(lost) or 'nothing'} missing; record {root}")
    document = {"commits": commits, "files": len(versions), "missing": [str(one) for one in lost], "root": root}
    return Answer(document=document, shown=shown, code=1 if lost else 0)


def verify(options: argparse.Namespace) -> Answer:
    """Count the links that hold and list the first broken ones with a remedy; with `--all` or names, list every link.

    The exit code is 1 if a link is broken.
    """
    from stages.upkeep import verifying  # loads SQLAlchemy

    open_database()
    names = options.checkpoints
    recorded, trails = verifying.verify(Path(), DATABASE, names, with_weights=options.weights)
    evidence = verifying.check_evidence(Path()) if options.evidence else []
    again = compare_again(Path(), load_params()) if options.equivalences else ()
    statuses: dict[bool | None, verifying.LinkStatus] = {True: "holds", False: "broken", None: "not here"}
    lines = [verifying.Link("equivalences", statuses[same], detail) for same, detail in again]
    document = {
        "record": dataclasses.asdict(recorded),
        "equivalences": [dataclasses.asdict(link) for link in lines],
        "checkpoints": list(map(_trail_document, trails)),
        "evidence": list(map(_trail_document, evidence)),
    }
    counts = _count_links(recorded, *lines, *(link for trail in (*trails, *evidence) for link in trail.links))
    totals = {status: sum(n for (_, found), n in counts.items() if found == status) for status in _STATUSES}
    document["totals"] = totals
    if options.all or names:
        listed: list[RenderableType] = [f"{link.name}: {link.status}; {link.detail}" for link in (recorded, *lines)]
        for trail in (*trails, *evidence):
            listed.append(f"{trail.checkpoint}: {f'broken at {trail.broken.name}' if trail.broken else 'holds'}")
            listed += [f"  {link.name}: {link.status}; {link.detail}" for link in trail.links]
    else:
        links = [("the database", recorded), *(("the evidence", link) for link in lines)]
        links += [(trail.checkpoint, trail.broken) for trail in (*trails, *evidence) if trail.broken]
        broken = [pair for pair in links if pair[1].status == "broken"]
        listed = [_table(counts)]
        for where, link in broken[:_SHOWN]:
            listed.append(f"{where} is broken at {link.name}: {link.detail[:400]}; {verifying.REMEDIES[link.name]}")
        if len(broken) > _SHOWN:
            listed.append(f"and {len(broken) - _SHOWN:,} more, which `claimcheck verify --all` lists")
    last = (
        f"{len(trails):,} checkpoint{'s' if len(trails) != 1 else ''}"
        f"{f', {len(evidence):,} lines and files of evidence' if evidence else ''}: {totals['holds']:,} links hold, "
        f"{totals['not here']:,} not here, {totals['broken']:,} broken"
    )
    return Answer(document=document, shown=[*listed, last], code=1 if totals["broken"] else 0)


def _trail_document(trail: verifying.Trail) -> dict[str, Any]:
    return {
        "checkpoint": trail.checkpoint,
        "broken": trail.broken.name if trail.broken else None,
        "links": [dataclasses.asdict(link) for link in trail.links],
    }


def _count_links(*links: verifying.Link) -> Counter[tuple[str, str]]:
    return Counter((link.name, link.status) for link in links)


def _table(counts: Counter[tuple[str, str]]) -> RenderableType:
    kinds = dict.fromkeys(name for name, _ in counts)
    return TextTable(
        [Column("link", left=True), *(Column(status) for status in _STATUSES)],
        [[kind, *(f"{counts[kind, status]:,}" for status in _STATUSES)] for kind in kinds],
    )


def usage(options: argparse.Namespace) -> Answer:
    """The disk usage of data and trainings."""
    sizes = disk_usage(Path())
    sizes["together"] = sum(sizes.values())
    rows = [[name, f"{size / 1e6:,.1f} MB"] for name, size in sizes.items()]
    return Answer(document={"bytes": sizes}, shown=[TextTable([Column("place", left=True), Column("size")], rows)])


def clean_up(options: argparse.Namespace) -> Answer:
    """Remove what killed trainings left behind."""
    removed = [*map(str, remove_leftovers(Path())), *remove_objects(Path())]
    return Answer(
        document={"removed": removed},
        shown=[*removed, f"{len(removed)} leftovers removed; outcomes and resumable states are kept"],
    )


def sample(options: argparse.Namespace) -> Answer:
    """Write a test image as PNG: a real one if the data set is packed or has samples in git, else a placeholder."""
    dataset, index = options.dataset, options.index
    source = find_source(load_params().datasets, dataset)
    if (kind := source.task or source.kind) != "images":
        raise PackedDataError(f"{dataset} is of kind {kind} and has no images with one class each")
    packed, published = Path("data/processed") / dataset, Path("data/samples") / dataset
    is_real = (packed / "dataset.json").is_file() and read_info(packed).provenance != "embedded"
    folder = published if published.is_dir() and not is_real else packed
    info, test_set = read_info(folder), read_images(folder, "test")
    if not 0 <= index < len(test_set):
        raise PackedDataError(f"{dataset} has {len(test_set)} test images; --index is {index}")
    pixels = test_set.images[index]
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    path = options.output or Path(f"{dataset}-{index}.png")
    with named(path):
        image.save(path, "PNG")
    label = info.classes[test_set.labels[index]]
    return Answer(
        document={"path": str(path), "dataset": dataset, "index": index, "provenance": info.provenance, "class": label},
        shown=[f"{path}: test image {index} of {dataset} ({info.provenance} data), class {label}"],
    )
