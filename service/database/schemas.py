"""Response types.  Fractions are in [0, 1], times in seconds, memory in bytes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Out(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class RegistrationOut(Out):
    """States if claim, rules and runs were registered before training."""

    mark: str = Field(examples=["exploratory"], description="confirmatory, exploratory, or unknown without git")
    why: str
    registrations: list[str] = Field(description="files in data/registrations that cover the current claim")
    after: int = Field(description="runs behind the verdict that were trained after a registration was committed")
    runs: int = Field(description="all runs behind the verdict")


class PaperOut(Out):
    name: str = Field(examples=["ninformer"])
    title: str
    summary: str


class DatasetOut(Out):
    name: str = Field(examples=["cifar100"])
    title: str = Field(examples=["CIFAR-100"])
    kind: str = Field(description="images, table, text, multi-label, regression or segmentation", examples=["images"])
    shape: list[int] = Field(
        description="of a sample: channels, height, width; columns; or tokens", examples=[[3, 32, 32]]
    )
    classes: int
    train_images: int
    test_images: int
    licence: str
    homepage: str


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


class ExperimentOut(Out):
    name: str = Field(examples=["ninformer-cifar100"])
    title: str
    paper: str
    dataset: str
    protocol: dict[str, Any] = Field(description="as printed, before the profile's cuts")
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


class EpochOut(Out):
    epoch: int
    steps: int
    lr: float
    train_loss: float
    train_accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None


class CurvePointOut(Out):
    """One epoch of an arm, over the compared replicates."""

    arm: str = Field(examples=["ninformer"])
    epoch: int
    replicates: int
    mean: float
    low: float = Field(description="lowest of all replicates")
    high: float


class ObservedNumberOut(Out):
    """One number from inside a network."""

    quantity: str = Field(examples=["attention_sigma"])
    moment: str = Field(description="start (its initial weights) or trained")
    block: int = Field(description="from 1, as heads")
    head: int
    value: float | None = Field(description="null if not defined")


class RunCostOut(Out):
    train_seconds: float
    epoch_seconds: list[float]
    samples_per_second: float
    peak_memory_bytes: int
    energy_joules: float | None = Field(description="energy reported by the device")
    latency_seconds_per_sample: float | None
    latency_batch_size: int | None
    latency_warmup: int | None
    latency_repeats: int | None
    latency_device: str | None
    latency_threads: int | None


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
