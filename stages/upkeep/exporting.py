"""Writes results for other tools: Every Eval Ever, the Hugging Face Hub, and Trackio; `crate.py` writes a Run Crate.

Every Eval Ever 0.3 has one file per model, as its datastore lays them out, of full-length results on real data.  An
`uncertainty` has one source of error only, because its standard error and interval are read with one `num_samples`: the
test samples for accuracies, else the training runs.  `details` always has the error between runs with its interval and
number of runs, so accuracies have both.

A repository of the Hub has weights, a model card, and `.eval_results`.  A card's `model-index` and the Hub's newer
`.eval_results/*.yaml` name a data set of the Hub, so a model that was trained on another one has neither.  Both give
the accuracy of the released weights, on the whole test set.  Their notes have n, the standard error of sampling, and
the standard deviation between the runs of the model's own group.

A Trackio logbook has a page per paper, and a project per experiment with its runs.  Trackio reads the folder `.trackio`
of the current directory and, for projects, the one that `TRACKIO_DIR` names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from stages.citation import CITATION, Citation, CitationError, read_about
from stages.faults import Mistake
from stages.results import (
    ICONS,
    METRICS,
    WORD_OF,
    ArmComparison,
    ArmRow,
    Checkpoint,
    Claim,
    ClaimFilter,
    Dataset,
    Epoch,
    ExperimentComparison,
    ExperimentRow,
    JudgedClaim,
    MetricInfo,
    Paper,
    Question,
    Result,
    Status,
    Word,
    compare,
    fidelity_of,
    list_judged,
)
from stages.yaml_reader import dump_yaml


class ExportError(Mistake, ValueError):
    """Nothing is exported; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Summary of an export below `folder`: numbers by name, and sentences for the user."""

    folder: Path
    counts: Mapping[str, int]
    notes: Sequence[str] = field(default_factory=tuple)


def require_new(folder: Path) -> None:
    if folder.exists():
        raise ExportError(f"{folder} exists already; name a new folder")


def require_package(name: str) -> ModuleType:
    """Import a package of the extra `export`."""
    try:
        return import_module(name)
    except ImportError:
        raise ExportError(f"needs a package that isn't installed: pip install {name.partition('.')[0]}") from None


def read_citation(root: Path, *needed: str) -> Citation:
    """Read `CITATION.cff`, which describes the project whose results are exported.

    Raises:
        ExportError: there is no such file, it can't be read, or it has no authors or lacks one of the `needed` fields.
    """
    try:
        about = read_about(root / CITATION)
    except FileNotFoundError:
        raise ExportError(f"needs the file {CITATION} with authors, title, version and license") from None
    except CitationError as error:
        raise ExportError(str(error)) from None
    if missing := [name for name in ("authors", *needed) if not getattr(about, name)]:
        raise ExportError(f"{CITATION} lacks {', '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}")
    return about


def sampling_error(share: float, n: int) -> float:
    """Return the standard error of a share of `n` test samples: how it would vary over other samples of their kind."""
    return math.sqrt(share * (1 - share) / n)


SCHEMA = "0.3.0"
COLLECTION = "claimcheck"


def write_records(session: Session, root: Path, folder: Path, experiments: Collection[str]) -> Exported:
    """Write `data/claimcheck/claimcheck/<experiment>.<arm>/<uuid>.json` below `folder` for these experiments.

    Raises:
        ExportError: the folder exists, `CITATION.cff` doesn't, or there is no full-length result.
    """
    require_new(folder)
    about = read_citation(root)
    scored: dict[tuple[str, str], list[tuple[ExperimentComparison, ArmComparison]]] = defaultdict(list)
    shortened = set()
    for metric in (info.name for info in METRICS.values() if info.split == "test"):
        for comparison in compare(session, Question(metric=metric)):
            if comparison.experiment not in experiments or metric not in comparison.printed_metrics:
                continue
            for arm in (arm for arm in comparison.arms if arm.ours):
                if arm.no_difference:
                    shortened.add((comparison.experiment, arm.arm))
                else:
                    scored[comparison.experiment, arm.arm].append((comparison, arm))
    if not scored:
        raise ExportError(
            "no full-length result on real data; `claimcheck profile paper` makes the next repro train them"
        )
    for (experiment, name), scores in scored.items():
        record = _record(session, about, f"{COLLECTION}/{experiment}.{name}", scores)
        text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
        unique = uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4)
        path = folder / "data" / COLLECTION / record["model_info"]["id"] / f"{unique}.json"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n", encoding="utf-8")
    counts = {"models": len(scored), "scores": sum(map(len, scored.values()))}
    notes = [f"{len(shortened)} models left out: they have only shortened runs"] if shortened else []
    return Exported(folder=folder, counts=counts, notes=notes)


def _record(
    session: Session, about: Citation, model: str, scores: list[tuple[ExperimentComparison, ArmComparison]]
) -> dict[str, Any]:
    comparison, arm = scores[0]
    dataset, paper = session.get_one(Dataset, comparison.dataset), session.get_one(Paper, comparison.paper)
    run_keys = [key for _, arm in scores for key in arm.run_keys]
    origins = session.scalars(select(Result.origin).where(Result.run_key.in_(run_keys)))
    times = [datetime.fromisoformat(origin["published"]).timestamp() for origin in origins if origin]
    published = f"{max(times, default=time.time()):.0f}"  # seconds since 1970
    released = select(Checkpoint.id).where(Checkpoint.id.in_(arm.checkpoints), Checkpoint.dtype.is_not(None))
    authors = ", ".join(author.name for author in about.authors)
    source = {"dataset_name": dataset.title, "source_type": "url", "url": [dataset.homepage]}
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{COLLECTION}/{model}/{published}",
        "retrieved_timestamp": published,
        "source_metadata": {
            "source_name": "Claimcheck",
            "source_type": "evaluation_run",
            "source_organization_name": authors,
            "evaluator_relationship": "other",
            "additional_details": {"relationship": "the evaluator trained the models"},
        },
        "eval_library": {"name": "claimcheck", "version": version("claimcheck")},
        "model_info": {
            "name": arm.title,
            "id": model,
            "developer": authors,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if session.scalar(released) else "closed_weights",
                "paper": paper.title,
                "role": arm.role,
            },
        },
        "evaluation_results": [
            {
                "evaluation_result_id": f"{model}/{comparison.metric.name}",
                "evaluation_name": comparison.title,
                "source_data": source,
                "metric_config": _metric(comparison.metric),
                "score_details": _score(comparison, arm),
            }
            for comparison, arm in scores
        ],
    }


_UNITS = {"rmse": "target", "mae": "target", "perplexity": "perplexity"}


def _metric(metric: MetricInfo) -> dict[str, Any]:
    is_log, is_share = "log_" in metric.name, metric.unit == "fraction"
    return {
        "metric_id": metric.name,
        "metric_name": metric.title,
        "metric_unit": "proportion" if is_share else metric.unit or _UNITS.get(metric.name, "squared target"),
        "lower_is_better": metric.better == "lower",
        "score_type": "continuous",
        "min_score": "-Infinity" if is_log else 1.0 if metric.name == "perplexity" else 0.0,
        "max_score": 1.0 if is_share else "Infinity",
    }


def _score(comparison: ExperimentComparison, arm: ArmComparison) -> dict[str, Any]:
    ours, printed = arm.ours, arm.printed
    assert ours is not None, "the caller leaves out models without scores"
    population = ours.population
    sampling = sampling_error(ours.value, population.n_test) if population else None
    between = f"standard deviation over {ours.n} training runs / sqrt({ours.n})"
    interval_method = f"Student's t over {ours.n} training runs"
    if comparison.metric.of_arm:
        between, interval_method = f"the paper's own, over {ours.n} folds", f"jackknife over {ours.n} folds"
    bounds, error, method, how, n = (
        (population, sampling, "analytic", "Wilson score", population.n_test)
        if population
        else (ours, ours.stderr, between, interval_method, ours.n)
    )
    uncertainty: dict[str, Any] = {}
    if error is not None:
        uncertainty = {"standard_error": {"value": error, "method": method}, "num_samples": n}
    if bounds.low is not None:
        interval = {"lower": bounds.low, "upper": bounds.high, "confidence_level": 0.95, "method": how}
        uncertainty["confidence_interval"] = interval
    verdicts = [f"{one.claim}: {one.status}" for one in arm.verdicts if one.metric == comparison.metric.name]
    details = {
        "training_runs": ours.n,
        "diverged_runs": ours.n_diverged,
        "run_to_run_standard_deviation": ours.std,
        "run_to_run_standard_error": ours.stderr,
        "run_to_run_interval": None if ours.low is None else f"{ours.low} to {ours.high} (95 %, {interval_method})",
        "test_samples": ours.n_test,
        "sampling_standard_error": sampling,
        "fidelity": comparison.label,
        "printed": printed and f"{printed.value:g}{f' ± {printed.stderr:g}' if printed.stderr is not None else ''}",
        "verdicts": "; ".join(verdicts) or None,
        "run_keys": " ".join(arm.run_keys),
    }
    texts = {name: str(value) for name, value in details.items() if value is not None}
    return {"score": ours.value, "uncertainty": uncertainty, "details": texts}


ON_THE_HUB = {
    ("http://yann.lecun.com/exdb/mnist/", 10): "ylecun/mnist",
    ("https://www.cs.toronto.edu/~kriz/cifar.html", 10): "uoft-cs/cifar10",
    ("https://www.cs.toronto.edu/~kriz/cifar.html", 100): "uoft-cs/cifar100",
}
"""The Hub's name of a data set by homepage and classes, because a project can name its own images `mnist`."""
_TASK = "image-classification"
_BODY = """\
# {title}

A {role} model of *{paper}*, trained on {dataset} to check a printed number.

**How faithful:** {fidelity}.

| quantity | test accuracy |
|---|--:|
| these weights, on {n:,} test images | {accuracy:.2%} |
| standard error of sampling | {sampling:.2%} |
| mean over training runs | {mean:.2%} |
| training runs | {runs} |
| standard deviation between runs | {between} |
{printed}
## Use

`model.safetensors` has the weights in {dtype}; its header names the network, the normalisation and the classes. In a
clone of Claimcheck:

```python
from stages.checkpoint.predictor import load_predictor

predictor = load_predictor("model.safetensors")
predictor.probabilities(images)  # uint8 [N, {shape}] -> float [N, {classes}]
```

## Training

Network `{model}`, revision `{revision}`, run key `{run_key}`:

```yaml
{protocol}```

## Limits

The weights show what was trained; we don't claim that their accuracy is good. {terms}
"""


def write_models(session: Session, root: Path, folder: Path, experiments: Collection[str]) -> Exported:
    """Write `<experiment>.<arm>.<replicate>/` for each released model of these experiments.

    Raises:
        ExportError: the folder exists, huggingface_hub isn't installed, or no model is released.
    """
    require_new(folder)
    hub = require_package("huggingface_hub")
    licences = read_citation(root).license if (root / CITATION).is_file() else ()
    wanted = select(Checkpoint).where(Checkpoint.dtype.is_not(None), Checkpoint.experiment.in_(experiments))
    released = session.scalars(wanted.order_by(Checkpoint.position)).all()
    if not released:
        raise ExportError("no released model; `claimcheck release <experiment> <arm>` copies one to data/models")
    for model in released:
        target = folder / model.id
        target.mkdir(parents=True)
        shutil.copy(root / model.path, target / "model.safetensors")
        if (root / "NOTICE").is_file():
            shutil.copy(root / "NOTICE", target)
        _describe(session, hub, model, target, " or ".join(licences))
    return Exported(folder=folder, counts={"models": len(released)})


def _describe(session: Session, hub: Any, model: Checkpoint, target: Path, licence: str) -> None:
    """Write one model's card and evaluation results; `licence` is the project's, "" if it names none."""
    result, experiment = model.result, session.get_one(ExperimentRow, model.experiment)
    arm = session.get_one(ArmRow, (experiment.name, result.arm))
    dataset, paper = session.get_one(Dataset, experiment.dataset), session.get_one(Paper, experiment.paper)
    accuracy, n = model.accuracy, result.test_images
    assert accuracy is not None, "a released model was evaluated"
    same = [getattr(Result, name) == getattr(result, name) for name in ("experiment", "arm", "profile", "conditions")]
    selected = select(Result.accuracy).where(*same, Result.is_selected, Result.accuracy.is_not(None))
    runs = [value for value in session.scalars(selected) if value is not None]
    sampling = sampling_error(accuracy, n)
    deviation = stdev(runs) if len(runs) > 1 else None
    between = "unknown: one run" if deviation is None else f"{deviation:.2%} ({len(runs)} runs)"
    its_number = Claim.kind == "value", Claim.metric == "accuracy", Claim.value.is_not(None)
    printed = session.scalar(
        select(Claim)
        .where(Claim.experiment == experiment.name, Claim.arm == arm.name, *its_number)
        .order_by(Claim.position)
        .limit(1)
    )
    source = {}
    if address := os.environ.get("CLAIMCHECK_ADDRESS"):
        source = {
            "source_name": "Claimcheck",
            "source_url": f"{address.rstrip('/')}/models/{experiment.name}.{arm.name}",
        }
    fidelity, hub_name = fidelity_of(result), ON_THE_HUB.get((dataset.homepage, dataset.classes))
    terms, link = f"The terms of the data set apply to the weights: {dataset.licence}.", dataset.homepage
    if (target / "NOTICE").is_file():
        terms, link = f"{terms} See [NOTICE](NOTICE).", "NOTICE"
    metadata: dict[str, Any] = {}
    if licence:
        name = re.sub(r"[^a-z0-9.]+", "-", f"{licence} with terms of the data".lower())
        metadata = {"license": "other", "license_name": name, "license_link": link}
        terms = f"The code is under {licence}. {terms}"
    if hub_name is not None:
        numbers = {"n": n, "sampling_standard_error": sampling, "training_runs": len(runs)}
        numbers |= {} if deviation is None else {"run_to_run_standard_deviation": deviation}
        evaluation = hub.EvalResult(
            task_type=_TASK,
            dataset_type=hub_name,
            dataset_name=dataset.title,
            dataset_split="test",
            metric_type="accuracy",
            metric_name="Test accuracy",
            metric_value=accuracy,
            metric_args=numbers,
            **source,
        )
        metadata |= {"datasets": [hub_name], "eval_results": [evaluation], "model_name": model.id}
        entry = hub.EvalResultEntry(
            dataset_id=hub_name,
            task_id=_TASK,
            value=accuracy,
            date=result.origin and result.origin["published"],
            notes=f"n = {n} test images, standard error of sampling {sampling:.4f}, "
            f"standard deviation between training runs {between}; "
            f"{fidelity}",
            **source,
        )
        path = target / ".eval_results" / f"{dataset.name}.yaml"
        path.parent.mkdir()
        entries = hub.eval_result_entries_to_yaml([entry])
        path.write_text(dump_yaml(entries), encoding="utf-8")
    data = hub.ModelCardData(
        library_name="claimcheck",
        pipeline_tag=_TASK,
        tags=["reproducibility", paper.name, arm.role],
        metrics=["accuracy"],
        **metadata,
    )
    body = _BODY.format(
        title=f"{arm.title}: {experiment.title}",
        role=arm.role,
        paper=paper.title,
        dataset=dataset.title,
        fidelity=fidelity,
        n=n,
        accuracy=accuracy,
        sampling=sampling,
        mean=fmean(runs),
        runs=len(runs),
        between=between,
        printed=f"| printed by the paper ({printed.place}) | {printed.value:.2%} |\n" if printed else "",
        dtype=model.dtype,
        shape=", ".join(map(str, dataset.shape)),
        classes=dataset.classes,
        run_key=result.run_key,
        model=result.spec["model"]["path"],
        revision=result.origin and result.origin["revision"],
        terms=terms,
        protocol=dump_yaml(result.spec["protocol"]),
    )
    hub.ModelCard(f"---\n{data}\n---\n\n{body}").save(target / "README.md")


_CURVES = [column.name for column in Epoch.__table__.columns if column.name not in ("result_id", "epoch")]


def write_logbook(session: Session, folder: Path, experiments: Collection[str]) -> Exported:
    """Write the logbook to `folder/.trackio/logbook`, and these experiments' curves to databases next to it.

    Raises:
        ExportError: the folder exists, or trackio isn't installed.
    """
    require_new(folder)
    target, judged = folder.resolve(), list_judged(session, ClaimFilter())  # a relative database is open from here on
    with tempfile.TemporaryDirectory(prefix="claimcheck-") as scratch:  # so that no parent folder has a logbook
        place = Path(scratch, target.name)
        place.mkdir()
        os.environ["TRACKIO_DIR"] = str(place / ".trackio")  # read when trackio is imported
        book, storage = require_package("trackio.logbook"), require_package("trackio.sqlite_storage").SQLiteStorage
        with contextlib.chdir(place):
            counts = _write(session, judged, book, storage, experiments)
        shutil.copytree(place, target)
    note = f"to read it: cd {folder} && TRACKIO_DIR=.trackio trackio logbook serve"
    return Exported(folder=folder, counts=counts, notes=[note])


def _write(
    session: Session, judged: Sequence[JudgedClaim], book: Any, storage: Any, experiments: Collection[str]
) -> dict[str, int]:
    pages = runs = 0
    project = book.create_logbook("Claimcheck: do the numbers of a paper hold?")
    for paper in session.scalars(select(Paper).order_by(Paper.position)):
        page = book.ensure_page(project, paper.called)
        book.add_markdown_cell(project, page, f"**{paper.title}**\n\n{paper.summary}", title="The paper")
        wanted = ExperimentRow.paper == paper.name, ExperimentRow.name.in_(experiments)
        for experiment in session.scalars(select(ExperimentRow.name).where(*wanted).order_by(ExperimentRow.position)):
            found = list(_runs(session, experiment))
            for run, config, epochs in found:
                steps = [epoch.pop("epoch") for epoch in epochs]
                when = [config["published"] or ""] * len(epochs)
                storage.bulk_log(experiment, run, epochs, steps=steps, timestamps=when, config=config)
            if found:
                book.add_dashboard_cell(project, page, experiment)
            runs += len(found)
        rows = [one for one in judged if one.claim.paper == paper.name]
        book.add_markdown_cell(project, page, _table(rows), title="Verdicts")
        pages += 1
    book.write_site_files(project)
    return {"pages": pages, "runs": runs}


def _table(judged: Sequence[JudgedClaim]) -> str:
    """Return a Markdown table: each claim, its place, our number, n and the verdict."""
    lines = ["| claim | place | ours | n | verdict |", "|---|---|--:|--:|---|"]
    for one in judged:
        verdict, word = one.verdict, WORD_OF[Status(one.verdict.status)]
        ours = "" if verdict.ours is None else f"{verdict.ours:.4g}"
        because = "" if word is Word.NOT_TESTED else f": {verdict.explanation}".replace("|", "\\|").replace("\n", " ")
        lines.append(
            f"| {one.claim.id} | {one.claim.place} | {ours} | {verdict.n or ''} | {ICONS[word]} {word}{because} |"
        )
    return "\n".join(lines)


def _runs(session: Session, experiment: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, float]]]]:
    """Yield the name, settings and curves of each selected run on real data."""
    query = select(Result).where(Result.experiment == experiment, Result.is_selected, Result.provenance != "embedded")
    for result in session.scalars(query.options(selectinload(Result.epochs)).order_by(Result.id)):
        config = {
            "arm": result.arm,
            "replicate": result.replicate,
            "run_key": result.run_key,
            "profile": result.profile,
            "cut": result.cut,
            "published": result.origin and result.origin["published"],
            "model": result.spec["model"],
            "protocol": result.spec["protocol"],
        }
        epochs = [
            {"epoch": row.epoch, **{name: value for name in _CURVES if (value := getattr(row, name)) is not None}}
            for row in result.epochs
        ]
        if epochs:
            yield f"{result.arm}.{result.replicate} {result.profile} {result.run_key[:8]}", config, epochs
