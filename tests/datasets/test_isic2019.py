import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.archive import decode_square
from stages.datasets.image_readers import (
    ISIC2019,
    ISIC_ARCHIVE,
    ISIC_COLUMNS,
    ISIC_METADATA,
    ISIC_TRUTH,
    choose_isic_test,
)
from stages.datasets.manifest import DatasetError
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import DatasetSource, load_params
from tests.datasets.archives import write_zip
from tests.datasets.test_archive import jpeg

COUNTS = (18, 12, 6, 6, 6, 6, 6, 6)
IMAGES = {f"ISIC_{100 * label + number:07d}": label for label, count in enumerate(COUNTS) for number in range(count)}
# Three melanomas share one lesion; so do two nevi, three times.
LESIONS = {f"ISIC_{number:07d}": "MSK_1" for number in range(3)} | {
    f"ISIC_{100 + number:07d}": f"BCN_{number // 2}" for number in range(6)
}


def pixels(image: str) -> np.ndarray:
    return np.random.RandomState(int(image[5:])).randint(0, 256, (80, 80, 3)).astype(np.uint8)


def flat(image: str, shape: tuple[int, int]) -> np.ndarray:
    """Make small pictures quickly: each has a single, distinct colour."""
    number = list(IMAGES).index(image)
    return np.full((*shape, 3), (3 * number, 255 - 3 * number, 7 * number % 256), dtype=np.uint8)


def write(
    folder: Path,
    *,
    lesions: dict[str, str] | None = LESIONS,
    copy_of: dict[str, str] | None = None,
    shape: tuple[int, int] | None = None,
) -> None:
    """Write the official files; pictures in `copy_of` repeat another's content, and all have this `shape`."""
    sources = {image: (copy_of or {}).get(image, image) for image in IMAGES}
    contents = {
        image: jpeg(pixels(source) if shape is None else flat(source, shape)) for image, source in sources.items()
    }
    members = [(f"ISIC_2019_Training_Input/{image}.jpg", contents[image]) for image in IMAGES]
    write_zip(folder / ISIC_ARCHIVE, [*members, ("ISIC_2019_Training_Input/LICENSE.txt", b"CC BY-NC 4.0")])
    marks = {
        image: ",".join("1.0" if index == label else "0.0" for index in range(9)) for image, label in IMAGES.items()
    }
    truth = [f"image,{','.join(ISIC_COLUMNS)},UNK", *(f"{image},{mark}" for image, mark in marks.items())]
    (folder / ISIC_TRUTH).write_text("\n".join(truth) + "\n", encoding="utf-8")
    if lesions is not None:
        rows = [f"{image},55.0,head/neck,{lesions.get(image, '')},female" for image in IMAGES]
        (folder / ISIC_METADATA).write_text(
            "\n".join(["image,age_approx,anatom_site_general,lesion_id,sex", *rows]) + "\n", encoding="utf-8"
        )


def split_images(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of training and test pictures, recovered from their pixels."""
    names = {}
    for image in IMAGES:
        key = decode_square(jpeg(pixels(image)), 80, image).tobytes()
        names[key] = image
    train, test = (ISIC2019.read_split(folder, split) for split in ("train", "test"))  # type: ignore[arg-type]
    return {names[row.tobytes()] for row in train.images}, {names[row.tobytes()] for row in test.images}


def test_split_is_disjoint_complete_and_deterministic(tmp_path: Path) -> None:
    write(tmp_path)
    for split, counts in (("test", [3, 2, 1, 1, 1, 1, 1, 1]), ("train", [15, 10, 5, 5, 5, 5, 5, 5])):
        labels = ISIC2019.read_split(tmp_path, split).labels  # type: ignore[arg-type]
        assert np.bincount(labels).tolist() == counts, "a sixth of each class is the test set"
    train, test = split_images(tmp_path)
    assert (train & test, train | test) == (set(), set(IMAGES))
    assert split_images(tmp_path) == (train, test)


def test_pictures_of_one_lesion_stay_together() -> None:
    """The order of the names doesn't matter: tried with forty other numberings of the lesions."""
    for number in range(40):
        lesions = {image: f"{lesion}_{number}" for image, lesion in LESIONS.items()}
        test = choose_isic_test(IMAGES, {image: lesions.get(image, image) for image in IMAGES})
        for lesion in set(lesions.values()):
            assert len({image in test for image in lesions if lesions[image] == lesion}) == 1, lesion
        assert len(test) == 11


def torn(test: set[str]) -> set[str]:
    """Return the lesions with pictures in both splits."""
    return {LESIONS[image] for image in LESIONS if image in test} & {LESIONS[i] for i in LESIONS if i not in test}


def test_metadata_prevent_splitting_lesions(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    write(tmp_path / "without", lesions=None)
    assert torn(split_images(tmp_path / "without")[1])
    write(tmp_path)
    assert not torn(split_images(tmp_path)[1])


def test_files_with_equal_content_stay_together(tmp_path: Path) -> None:
    copies = {f"ISIC_{number:07d}": "ISIC_0000017" for number in range(12, 17)}
    write(tmp_path, copy_of=copies)
    manifest_free = load_params().datasets["isic2019"]
    train, test = (ISIC2019.read_split(tmp_path, split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert manifest_free.shared_images is None
    assert not {row.tobytes() for row in train.images} & {row.tobytes() for row in test.images}


def test_share_of_known_lesions_is_stated(tmp_path: Path) -> None:
    write(tmp_path)
    assert ISIC2019.describe(tmp_path) == "split by lesion for 9 of 66 images (13.6%), by image for the rest"


TRUTH_FAULTS = {
    "no column": ("MEL,", "", "has no column MEL"),
    "two classes": ("ISIC_0000000,1.0,0.0", "ISIC_0000000,1.0,1.0", "ISIC_0000000 doesn't have exactly one of"),
    "ninth class": ("ISIC_0000000,1.0", "ISIC_0000000,0.0", "ISIC_0000000 doesn't have exactly one of"),
    "no number": ("ISIC_0000000,1.0", "ISIC_0000000,yes", "ISIC_0000000 doesn't have exactly one of"),
    "twice": ("ISIC_0000001,", "ISIC_0000000,", "ISIC_0000000 occurs twice"),
    "picture without a row": ("ISIC_0000001,", "ISIC_9999999,", "ISIC_0000001.jpg: .* doesn't name it"),
    "row without a picture": (
        "UNK\n",
        "UNK\nISIC_9999999,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0\n",
        "has no ISIC_9999999.jpg",
    ),
}


@pytest.mark.parametrize("fault", TRUTH_FAULTS)
def test_invalid_ground_truth_is_reported(tmp_path: Path, fault: str) -> None:
    before, after, message = TRUTH_FAULTS[fault]
    write(tmp_path)
    text = (tmp_path / ISIC_TRUTH).read_text(encoding="utf-8")
    assert before in text
    (tmp_path / ISIC_TRUTH).write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(DatasetError, match=message):
        ISIC2019.read_split(tmp_path, "train")


def test_metadata_without_lesions_are_reported(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / ISIC_METADATA).write_text("image,sex\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="has no column lesion_id"):
        ISIC2019.read_split(tmp_path, "train")


WHOLE = dataclasses.replace(
    load_params().datasets["isic2019"],
    train=55,
    test=11,
    train_per_class=(15, 10, 5, 5, 5, 5, 5, 5),
    test_per_class=(3, 2, 1, 1, 1, 1, 1, 1),
    urls=(),
)


def provenance(home: Path, source: DatasetSource = WHOLE) -> str:
    manifest = fetch_dataset("isic2019", source, home, None, lambda line: None)
    return prepare(source, manifest, home, home / "packed").provenance


def test_all_pictures_in_official_sizes_are_the_full_set(tmp_path: Path) -> None:
    folder = tmp_path / "downloads" / "isic2019"
    folder.mkdir(parents=True)
    write(folder, shape=(450, 600))
    assert provenance(tmp_path) == "full"
    assert provenance(tmp_path, dataclasses.replace(WHOLE, complete_by_content=False)) == "subset"
    assert provenance(tmp_path, dataclasses.replace(WHOLE, train=56)) == "subset", "one of 67 is missing"
    (folder / ISIC_METADATA).unlink()
    assert provenance(tmp_path) == "subset", "without metadata, lesions are split"
    shrunk = tmp_path / "shrunk" / "downloads" / "isic2019"
    shrunk.mkdir(parents=True)
    write(shrunk, shape=(224, 224))
    assert provenance(tmp_path / "shrunk") == "subset", "shrunk copies circulate under the official names"


def test_unpacked_real_sample_becomes_a_subset(tmp_path: Path, sample_mirror: Path) -> None:
    source = load_params().datasets["isic2019"]
    manifest = fetch_dataset("isic2019", source, tmp_path, sample_mirror, lambda line: None)
    assert [file.name for file in manifest.files] == [ISIC_TRUTH, ISIC_ARCHIVE], "the sample has no metadata"
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("subset", "mirror")
    assert (info.train_images, info.test_images, info.shape) == (56, 8, (3, 80, 80))
    assert info.split_note == "split by lesion for 0 of 64 images (0.0%), by image for the rest"
