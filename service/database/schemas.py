"""Response types.  Fractions are in [0, 1], times in seconds, memory in bytes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

from stages.results import Base, Cost, Dataset, Epoch, ExperimentRow, ObservationRow


class Out(BaseModel):
    """An answer.  `class EpochOut(Out, of=Epoch)` has the columns of a table, or the fields of a dataclass.

    They are described there: by the column's `doc`, or as `Annotated[float, "description"]`.  A field that the class
    declares itself replaces the one that it reads; a new field follows the one declared above it.  Fields named in
    `without` are left out.
    """

    model_config = ConfigDict(from_attributes=True)

    def __init_subclass__(cls, *, of: type | None = None, without: Collection[str] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        if of is None:
            return
        hints = get_type_hints(of, include_extras=True)
        if issubclass(of, Base):
            fields = {one.name: (get_args(hints[one.name])[0], one.doc) for one in of.__table__.columns}
        else:
            fields = {
                name: get_args(hint) if get_origin(hint) is Annotated else (hint, None) for name, hint in hints.items()
            }
        assert fields.keys() >= {*without}, f"{of.__name__} lacks one of {', '.join(without)}"
        own = cls.__annotations__
        order, at = [name for name in fields if name not in without], -1
        for name in own:
            read = getattr(cls.__dict__.get(name), "validation_alias", None) or name
            if read in order:
                at = order.index(read)
                order[at] = name
            else:
                at += 1
                order.insert(at, name)
        described = {name: Annotated[kind, Field(description=said)] for name, (kind, said) in fields.items()}
        cls.__annotations__ = {name: own.get(name, described.get(name)) for name in order}


class RegistrationOut(Out):
    """States whether claim, rules and runs were registered before training."""

    mark: str = Field(examples=["exploratory"], description="confirmatory, exploratory, or unknown without git")
    why: str
    registrations: list[str] = Field(description="files in data/registrations that cover the current claim")
    after: int = Field(description="runs behind the verdict that were trained after a registration was committed")
    runs: int = Field(description="all runs behind the verdict")


class PaperOut(Out):
    name: str = Field(examples=["ninformer"])
    title: str
    summary: str


class DatasetOut(Out, of=Dataset, without=("position", "class_names")):
    name: str = Field(examples=["cifar100"])
    title: str = Field(examples=["CIFAR-100"])
    kind: str = Field(
        description="images, table, text, multi-label, regression, segmentation or other", examples=["images"]
    )
    shape: list[int] = Field(
        description="of a sample: channels, height, width; columns; or tokens", examples=[[3, 32, 32]]
    )


class SampleOut(Out):
    position: int = Field(description="position in the packed test set")
    true_class: str = Field(examples=["horse"])
    provenance: str = Field(description="embedded (placeholder data), subset or full", examples=["full"])
    address: str = Field(description="URL of the image", examples=["/api/v1/datasets/cifar10/samples/13"])


class ArmOut(Out):
    name: str = Field(examples=["local-vit"])
    title: str
    role: str = Field(examples=["baseline"])
    model: dict[str, Any] = Field(description="the network's name and its arguments")
    protocol: dict[str, Any] = Field(description="fields in which the arm departs from the experiment's protocol")
    against: str | None = Field(description="baseline arm")


class ExperimentOut(Out, of=ExperimentRow, without=("position",)):
    name: str = Field(examples=["ninformer-cifar100"])
    seeds: list[int]
    arms: list[ArmOut]


class MetricOut(Out):
    metric: str = Field(examples=["accuracy"])
    split: str = Field(examples=["test"])
    value: float
    n_samples: int | None = Field(description="number of samples", validation_alias="n")


class RunOut(Out):
    """One result: a run in one environment, under one arm."""

    run_key: str
    experiment: str
    arm: str
    replicate: int
    source: str = Field(description="evidence (published) or local")
    is_selected: bool = Field(description="true if used in comparisons")
    profile: str
    provenance: str = Field(description="embedded (placeholder data), subset or full")
    cut: str
    status: str
    label: str = Field(description="how far you can trust this result")
    changed_code: list[str] = Field(description="modules changed since it was measured")
    metrics: list[MetricOut]


class EpochOut(Out, of=Epoch, without=("result_id",)): ...


class CurvePointOut(Out):
    """One epoch of an arm, over the compared replicates."""

    arm: str = Field(examples=["ninformer"])
    epoch: int
    replicates: int
    mean: float
    low: float = Field(description="lowest of all replicates")
    high: float


class ObservedNumberOut(Out, of=ObservationRow, without=("result_id", "position")):
    """One number from inside a network."""

    quantity: str = Field(examples=["attention_sigma"])


class RunCostOut(Out, of=Cost, without=("result_id", "train_tokens_per_second")):
    epoch_seconds: list[float]


class ArmResultOut(RunOut):
    """One result with everything behind it."""

    curves: list[EpochOut]
    observations: list[ObservedNumberOut] = Field(
        description="measured inside the network, if the paper makes claims about it"
    )
    cost: RunCostOut | None
    environment_digest: str
    environment: dict[str, Any]
    data_digest: str
    train_images: int
    test_images: int
    excluded_test_images: int
    weights_sha256: str | None
    checkpoint: str | None = Field(description="checkpoint id, if the weights are available")
    divergence: dict[str, Any] | None
    origin: dict[str, Any] | None = Field(description="git revision and versions of published evidence")


class RunDetailOut(Out):
    """A run with its results, one per arm and environment."""

    run_key: str
    spec: dict[str, Any]
    results: list[ArmResultOut]


class CheckpointOut(Out):
    id: str = Field(examples=["ninformer-cifar100.vit.0"])
    model_name: str = Field(description="name of its model under /v2", examples=["ninformer-cifar100.vit"])
    model_version: str = Field(description="version of that model under /v2", examples=["0"])
    experiment: str
    arm: str
    replicate: int
    dataset: str
    run_key: str
    sha256: str
    size_bytes: int
    profile: str
    provenance: str
    label: str
    dtype: str | None = Field(description="type of weights rounded for git; null for weights as trained")
    accuracy: float | None = Field(description="accuracy of these weights on their data's test set")


class ClassOut(Out):
    index: int
    name: str
    probability: float


class AnswerOut(Out):
    checkpoint: str
    top: list[ClassOut]


class LabelOut(Out):
    index: int
    name: str = Field(examples=["cloudy"])
    probability: float = Field(description="independent of the other labels")
    is_predicted: bool = Field(description="true if the probability is at least 0.5")


class LabelsAnswerOut(Out):
    """Answer of a model that learned several labels of an image: each of them, in the order of the data set."""

    checkpoint: str
    labels: list[LabelOut]


class NumberOut(Out):
    index: int
    name: str = Field(examples=["age"])
    value: float = Field(description="in the unit of the data set")


class NumbersAnswerOut(Out):
    """Answer of a model that learned numbers of an image (regression)."""

    checkpoint: str
    numbers: list[NumberOut]


class ShareOut(Out):
    index: int = Field(description="value of its pixels in the mask")
    name: str = Field(examples=["road"])
    share: float = Field(description="fraction of the pixels")
    colour: str = Field(examples=["#800000"], description="colour of its pixels in the mask's palette")


class MaskAnswerOut(Out):
    """Answer of a model that learned the class of each pixel (segmentation)."""

    checkpoint: str
    shares: list[ShareOut] = Field(description="classes that occur, largest first")
    mask: str = Field(
        description="PNG with a palette, whose pixel values are classes, in the size of the model's input: it shows "
        "the centre of the image, as the model saw it",
        json_schema_extra={"contentMediaType": "image/png", "contentEncoding": "base64"},
    )


class ImageAnswersOut(Out):
    file: str
    answers: list[AnswerOut | LabelsAnswerOut | NumbersAnswerOut | MaskAnswerOut] = Field(
        description="by what each model learned: classes (`top`), `labels`, `numbers` or a `mask`"
    )
    problem: str | None = Field(default=None, description="why this file has no answer")
    sample: SampleOut | None = Field(default=None, description="class of a test image; null for an upload")


class ModelOut(Out):
    """A checkpoint that made predictions, with its provenance."""

    checkpoint: str
    experiment: str
    arm: str
    title: str
    role: str
    replicate: int
    dataset: str
    run_key: str
    weights_sha256: str
    profile: str
    provenance: str
    label: str
    our_accuracy: float | None = Field(description="null for a model trained on placeholder data")
    paper_accuracy: float | None
    paper_claim: str | None
    seconds: float = Field(description="forward pass over all images of the request, without decoding")


class PredictionOut(Out):
    images: list[ImageAnswersOut]
    models: list[ModelOut]
    seconds: float = Field(description="time for the whole request after upload: loading, decoding and predicting")


class HealthOut(Out):
    status: str = Field(examples=["ok"])
    detail: str


class ServerLiveOut(Out):
    live: bool


class ServerReadyOut(Out):
    ready: bool


class ServerMetadataOut(Out):
    name: str
    version: str
    extensions: list[str]


class TensorMetadataOut(Out):
    name: str
    datatype: str
    shape: list[int] = Field(description="−1 for the number of images")


class ModelMetadataOut(Out):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadataOut]
    outputs: list[TensorMetadataOut]


class ModelReadyOut(Out):
    name: str
    ready: bool


class TensorOut(Out):
    name: str = Field(examples=["classes"])
    datatype: str = Field(examples=["INT64"])
    shape: list[int] = Field(examples=[[1]])
    data: list[float | bool] | None = Field(
        default=None, description="row-major values; absent if bytes follow the JSON"
    )
    parameters: dict[str, int] | None = None


class InferOut(Out):
    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, str] = Field(description="run key and digest of the weights used")
    outputs: list[TensorOut]
