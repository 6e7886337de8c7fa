"""Write each released model as a repository of the Hugging Face Hub: weights, a model card, and `.eval_results`.

A card's `model-index` and the Hub's newer `.eval_results/*.yaml` name a data set of the Hub, so a model that was
trained on another one has neither.  Both give the accuracy of the released weights, on the whole test set.  Their notes
have n, the standard error of sampling, and the standard deviation between the runs of the model's own group.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.citation import CITATION, read_licences
from stages.results import ArmRow, Checkpoint, Claim, Dataset, ExperimentRow, Paper, Result, fidelity_of
from stages.upkeep.exporting import Exported, ExportError, read_citation, require_new, require_package, sampling_error

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
    licences = read_licences(read_citation(root)) if (root / CITATION).is_file() else []
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
        path.write_text(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True), encoding="utf-8")
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
        protocol=yaml.safe_dump(result.spec["protocol"], sort_keys=False, allow_unicode=True),
    )
    hub.ModelCard(f"---\n{data}\n---\n\n{body}").save(target / "README.md")
