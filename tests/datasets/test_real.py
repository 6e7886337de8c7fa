"""Real data sets, from a mirror to the packed form, compared with independently published facts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.packed import read_images
from stages.datasets.prepare import READERS, prepare
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import load_params

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(900)]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Mean and deviation of the training pixels per channel in [0, 1], and the first classes of each split.

    The statistics are the four digits in published training recipes; the counts are the publishers'.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    first_train: list[str]
    first_test: list[str]
    train_counts: list[int]
    test_counts: list[int]


MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]

FACTS = {
    "mnist": Facts(
        mean=(0.1307,),
        std=(0.3081,),
        first_train=["5", "0", "4", "1", "9"],
        first_test=["7", "2", "1", "0", "4"],
        train_counts=MNIST_TRAIN,
        test_counts=MNIST_TEST,
    ),
    "cifar10": Facts(
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        first_train=["frog", "truck", "truck", "deer", "automobile"],
        first_test=["cat", "ship", "ship", "airplane", "frog"],
        train_counts=[5000] * 10,
        test_counts=[1000] * 10,
    ),
    "cifar100": Facts(
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        first_train=["cattle", "dinosaur", "apple", "boy", "aquarium_fish"],
        first_test=["mountain", "forest", "seal", "mushroom", "sea"],
        train_counts=[500] * 100,
        test_counts=[100] * 100,
    ),
}


@pytest.mark.parametrize("dataset", FACTS)
def test_real_data_set_matches_published_facts(tmp_path: Path, real_mirror: Path, dataset: str) -> None:
    source = load_params().datasets[dataset]
    manifest = fetch_dataset(dataset, source, tmp_path, real_mirror, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert info.provenance == "full"
    facts = FACTS[dataset]
    train, test = (read_images(tmp_path / "packed", split) for split in ("train", "test"))
    assert [info.classes[label] for label in train.labels[:5]] == facts.first_train
    assert [info.classes[label] for label in test.labels[:5]] == facts.first_test
    pixels = train.images.transpose(1, 0, 2, 3).reshape(source.shape[0], -1)
    np.testing.assert_allclose([channel.mean() / 255 for channel in pixels], facts.mean, atol=1e-4)
    np.testing.assert_allclose([channel.std(dtype=np.float64) / 255 for channel in pixels], facts.std, atol=1e-4)
    assert np.bincount(train.labels).tolist() == facts.train_counts
    left_out = np.array(facts.test_counts) - np.bincount(test.labels)
    assert left_out.min() >= 0
    assert left_out.sum() == info.excluded_test_images == source.test - len(test)


def test_inexact_cifar10_images_are_omitted(tmp_path: Path, real_mirror: Path) -> None:
    source = load_params().datasets["cifar10"]
    manifest = fetch_dataset("cifar10", source, tmp_path, real_mirror, lambda line: None)
    if manifest.source == "official":
        pytest.skip("this mirror has the official test_batch.bin")
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.test_images, info.excluded_test_images) == (9977, 23)
    assert info.test_rows is not None
    assert set(info.test_rows).isdisjoint(manifest.inexact_test_rows)
    raw = READERS["cifar10"].read_split(tmp_path / "downloads/cifar10", "test")
    kept = read_images(tmp_path / "packed", "test")
    np.testing.assert_array_equal(kept.images, raw.images[list(info.test_rows)])


@pytest.mark.parametrize(
    ("dataset", "file"),
    [("cifar10", "cifar-10-batches-bin/batches.meta.txt"), ("cifar100", "cifar-100-binary/fine_label_names.txt")],
)
def test_class_names_match_the_official_list(real_mirror: Path, dataset: str, file: str) -> None:
    path = real_mirror / dataset / file
    if not path.is_file():
        pytest.skip(f"this mirror has no {file}")
    assert list(READERS[dataset].classes) == path.read_text(encoding="utf-8").split()
