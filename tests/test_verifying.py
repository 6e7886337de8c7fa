"""`claimcheck verify` on a clone of this repository with its published evidence, one byte of each link flipped."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.cli import main
from stages.datasets.packed import ImageSet, PackedInfo, TokenSet, digest_images, digest_tokens, write_packed
from stages.recording import record
from stages.results import UnknownCheckpoint
from stages.verifying import Link, Trail, check_data, verify
from tests.packed_table import pack_table

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = "ninformer-mnist.ninformer.0"
EVIDENCE = "data/evidence/ninformer-mnist.jsonl"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with its database recorded, and with all history where the repository has it."""
    root = tmp_path_factory.mktemp("verify") / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(REPOSITORY), str(root)], check=True)
    subprocess.run(["git", "checkout", "--quiet", "HEAD"], cwd=root, check=True)
    record(root, "data/results.db", evidence_only=True)
    return root


@pytest.fixture(scope="module")
def small(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the evidence of one experiment, which is recorded ten times as fast, and the clone's history."""
    root = tmp_path_factory.mktemp("small") / "clone"
    shutil.copytree(clone, root, ignore=shutil.ignore_patterns(".git"))
    (root / ".git").symlink_to(clone / ".git")
    for path in (root / EVIDENCE).parent.glob("*.jsonl"):
        if path != root / EVIDENCE:
            path.unlink()
    record(root, "data/results.db", evidence_only=True)
    return root


@pytest.fixture
def root(small: Path, tmp_path: Path) -> Path:
    shutil.copytree(small, tmp_path / "clone", symlinks=True)
    return tmp_path / "clone"


def trail_of(root: Path) -> tuple[Link, Trail]:
    recorded, (trail,) = verify(root, str(root / "data" / "results.db"), [NAME])
    return recorded, trail


@pytest.fixture(scope="module")
def intact(clone: Path) -> tuple[Link, Trail]:
    """What `verify` says while nothing is damaged."""
    return trail_of(clone)


def statuses(trail: Trail) -> dict[str, str]:
    return {link.name: link.status for link in trail.links}


def test_the_trail_of_a_released_model_holds(clone: Path, intact: tuple[Link, Trail]) -> None:
    recorded, trail = intact
    assert recorded.status == "holds", recorded.detail
    found = statuses(trail)
    assert found.pop("data") == "not here"
    if found.pop("code") == "not here":
        assert subprocess.check_output(["git", "rev-parse", "--is-shallow-repository"], cwd=clone) == b"true\n"
    assert found == {"checkpoint": "holds", "run": "holds", "params": "holds", "environment": "holds"}, trail


def test_the_last_line_counts_what_holds(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    assert main(["verify", NAME]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    held, absent = (sum(f": {status}; " in line for line in lines) for status in ("holds", "not here"))
    assert last == f"1 checkpoint: {held} links hold, {absent} not here, 0 broken" and held + absent == 7


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def in_evidence(root: Path, text: str) -> tuple[Path, int]:
    """The evidence file and where `text` begins in the line of the model's arm."""
    path = root / EVIDENCE
    content = path.read_bytes()
    start = 0
    for line in content.splitlines(keepends=True):
        if json.loads(line)["result"]["arm"] == "ninformer":
            return path, start + line.index(text.encode())
        start += len(line)
    raise AssertionError("the arm has evidence")


def flip_weights(root: Path) -> None:
    flip(root / "data" / "models" / f"{NAME}.safetensors", -1)


def flip_params(root: Path) -> None:
    path = root / "params" / "ninformer-mnist.yaml"
    flip(path, path.read_bytes().rindex(b" dim: 256") + len(b" dim: 25"))


def flip_seed_in_evidence(root: Path) -> None:
    path, place = in_evidence(root, '"seed":')
    flip(path, place + len('"seed":'))
    record(root, "data/results.db", evidence_only=True)


def flip_revision(root: Path) -> None:
    path, place = in_evidence(root, '"revision":"')
    flip(path, place + len('"revision":"'))
    record(root, "data/results.db", evidence_only=True)


def flip_data_digest(root: Path) -> None:
    path, place = in_evidence(root, '"data":{')
    place = path.read_bytes().index(b'"digest":"', place)
    flip(path, place + len('"digest":"'))
    record(root, "data/results.db", evidence_only=True)


def flip_thread_count(root: Path) -> None:
    path, place = in_evidence(root, '"threads":')
    flip(path, place + len('"threads":'))
    record(root, "data/results.db", evidence_only=True)


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (flip_weights, "checkpoint"),
        (flip_seed_in_evidence, "run"),
        (flip_params, "params"),
        (flip_revision, "code"),
        (flip_data_digest, "checkpoint"),
        (flip_thread_count, "environment"),
    ],
)
def test_one_flipped_byte_breaks_the_link_it_is_in(
    root: Path, intact: tuple[Link, Trail], damage: Callable[[Path], None], broken: str
) -> None:
    damage(root)
    _, trail = trail_of(root)
    if broken == "code" and statuses(intact[1])["code"] == "not here":
        pytest.skip("a shallow clone has no history to look a revision up in")
    assert trail.broken is not None and trail.broken.name == broken, trail
    assert statuses(trail)[broken] == "broken"


def test_evidence_that_was_changed_after_it_was_recorded_is_told(root: Path) -> None:
    path, place = in_evidence(root, '"accuracy"')
    place = path.read_bytes().index(b'"value":0.', place) + len('"value":0.')
    flip(path, place)
    recorded, _ = trail_of(root)
    assert recorded.status == "broken" and "is not what the files give" in recorded.detail


def test_the_profile_of_the_next_run_changes_nothing_that_is_recorded(root: Path) -> None:
    params = root / "params.yaml"
    params.write_text(params.read_text().replace("profile: smoke", "profile: quick", 1))
    recorded, _ = trail_of(root)
    assert recorded.status == "holds", recorded


def test_a_cell_that_was_changed_in_the_database_is_told(root: Path) -> None:
    with sqlite3.connect(root / "data" / "results.db") as connection:
        connection.execute("UPDATE metrics SET value = value + 1e-9 WHERE result_id = 1 AND metric = 'accuracy'")
    connection.close()
    recorded, _ = trail_of(root)
    assert (recorded.status, recorded.detail.split(" is ")[0]) == ("broken", "table metrics")


def test_an_unknown_checkpoint_is_an_error_that_lists_the_known(clone: Path) -> None:
    with pytest.raises(UnknownCheckpoint, match=NAME):
        verify(clone, str(clone / "data" / "results.db"), ["x"])


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, str]:
    generator = np.random.default_rng(0)

    def images(count: int) -> ImageSet:
        return ImageSet(generator.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8), np.arange(count) % 2)

    train, test = images(6), images(4)
    digest = digest_images(train, test, ("a", "b"))
    info = PackedInfo(
        dataset="tiny",
        provenance="full",
        digest=digest,
        classes=("a", "b"),
        shape=(1, 4, 4),
        train_images=6,
        test_images=4,
        test_rows=None,
        excluded_test_images=0,
        source="official",
    )
    write_packed(tmp_path / "tiny", {"train": train, "test": test}, info)
    return tmp_path / "tiny", digest


def test_data_that_are_here_are_digested_again(packed: tuple[Path, str]) -> None:
    folder, digest = packed
    assert check_data(folder, digest, digest).status == "holds"
    assert check_data(folder, "0" * 64, "0" * 64).status == "not here", "another preparation of the same data set"
    assert check_data(folder, digest, "0" * 64).status == "broken"


def test_tables_and_texts_are_digested_again_too(tmp_path: Path) -> None:
    table = pack_table(tmp_path / "line", np.ones((300, 3), np.float32), np.arange(300, dtype=np.float32))
    train, test = (TokenSet(np.arange(start, start + 9, dtype=np.uint16)) for start in (0, 9))
    text = dataclasses.replace(table, dataset="text", kind="text", shape=(4,), digest=digest_tokens(train, test, 4))
    write_packed(tmp_path / "text", {"train": train, "test": test}, text)
    for folder, info in ((tmp_path / "line", table), (tmp_path / "text", text)):
        assert check_data(folder, info.digest, info.digest).status == "holds"
        flip(folder / "test.safetensors", -1)
        assert check_data(folder, info.digest, info.digest).status == "broken"


@pytest.mark.parametrize(("file", "place"), [("test.safetensors", -1), ("train.safetensors", -1)])
def test_one_flipped_byte_of_the_data_is_told(packed: tuple[Path, str], file: str, place: int) -> None:
    folder, digest = packed
    flip(folder / file, place)
    assert check_data(folder, digest, digest).status == "broken"


def test_a_digest_that_was_changed_in_the_description_is_told(packed: tuple[Path, str]) -> None:
    folder, digest = packed
    path = folder / "dataset.json"
    path.write_text(path.read_text().replace(digest, "0" * 64))
    assert check_data(folder, digest, digest).status == "broken"
