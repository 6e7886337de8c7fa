"""`claimcheck verify` on a clone with published evidence, with each link of the trail damaged once."""

import dataclasses
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from stages.claims import read_claims, read_history
from stages.claims.history import PATH as HISTORY
from stages.claims.history import append, pending
from stages.cli import main
from stages.datasets.packed import ImageSet, TokenSet, digest_tokens, write_packed
from stages.params.experiment import load_params
from stages.recording.append_only import read_versions, retract
from stages.recording.builder import record
from stages.results import UnknownCheckpoint, open_results
from stages.run import canonical_json
from stages.runs.evidence import EvidenceLine, ResultLine, pack_correct, read_lines, seal, unpack_correct
from stages.runs.store import seal as seal_outcome
from stages.upkeep.verifying import (
    REMEDIES,
    Link,
    Trail,
    check_data,
    compare,
    compare_released,
    find_trails,
    recompute,
    spot_check,
    verify,
)
from tests.packed_table import pack_images, pack_table

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = "ninformer-mnist.ninformer.0"
EVIDENCE = "data/evidence/ninformer-mnist.jsonl"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with full history if available, reduced to one experiment's evidence and claims, recorded faster."""
    root = tmp_path_factory.mktemp("verify") / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(REPOSITORY), str(root)], check=True)
    subprocess.run(["git", "checkout", "--quiet", "HEAD"], cwd=root, check=True)
    for path in (root / EVIDENCE).parent.glob("*.jsonl"):
        if path != root / EVIDENCE:
            path.unlink()
    claims = (root / "data" / "claims.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = "".join(line for line in claims if line.startswith("id,") or ",ninformer-mnist," in line)
    (root / "data" / "claims.csv").write_text(kept, encoding="utf-8")
    rows, rules, history = read_claims(root / "data" / "claims.csv"), load_params(root).verdicts, root / HISTORY
    removed = pending(rows, rules, read_history(history), known={}, published=())
    append(history, [change for change in removed if change.subject == "claim"], date="2026-01-01", why="Smaller")
    retract(root, read_versions(root), date="2026-01-01", why="A small record is faster")
    record(root, "data/results.db", evidence_only=True)
    return root


@pytest.fixture
def root(clone: Path, tmp_path: Path) -> Path:
    """A copy of the clone's files that shares its history."""
    shutil.copytree(clone, tmp_path / "clone", ignore=shutil.ignore_patterns(".git"))
    (tmp_path / "clone" / ".git").symlink_to(clone / ".git")
    return tmp_path / "clone"


def verify_one(root: Path) -> tuple[Link, Trail]:
    recorded, (trail,) = verify(root, str(root / "data" / "results.db"), [NAME])
    return recorded, trail


def trail_of(root: Path) -> Trail:
    """Return `verify`'s trail without recording everything again."""
    with open_results(str(root / "data" / "results.db"))() as session:
        (trail,) = find_trails(root, session, [NAME])
    return trail


@pytest.fixture(scope="module")
def intact(clone: Path) -> tuple[Link, Trail]:
    """The output of `verify` without damage."""
    return verify_one(clone)


def statuses(trail: Trail) -> dict[str, str]:
    return {link.name: link.status for link in trail.links}


def test_trail_of_a_released_model_is_intact(clone: Path, intact: tuple[Link, Trail]) -> None:
    recorded, trail = intact
    assert recorded.status == "holds", recorded.detail
    found = statuses(trail)
    assert found.pop("data") == "not here"
    if found.pop("code") == "not here":
        assert subprocess.check_output(["git", "rev-parse", "--is-shallow-repository"], cwd=clone) == b"true\n"
    assert found == dict.fromkeys(("checkpoint", "run", "params", "environment", "metrics"), "holds"), trail


def test_summary_counts_the_links_that_hold(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    assert main(["verify", NAME]) == 0
    output = capsys.readouterr()
    *lines, last = output.out.splitlines()
    assert output.err == "", "progress is shown only on terminals"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["verify", NAME, "--json"]) == 0
    output = capsys.readouterr()
    assert "Verifying checkpoints" in output.err and "Comparing the database" in output.err and json.loads(output.out)
    held, absent = (sum(f": {status}; " in line for line in lines) for status in ("holds", "not here"))
    assert last == f"1 checkpoint: {held} links hold, {absent} not here, 0 broken" and held + absent == 8


def test_verify_without_arguments_prints_at_most_twenty_lines_with_remedies(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert main(["verify"]) == 0
    heading, *kinds, last = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert heading == "link holds not here broken"
    assert "checkpoint 2 0 0" in kinds and "record 1 0 0" in kinds and last.endswith("0 broken")
    for path in (root / "data" / "models").glob("ninformer-mnist.*.safetensors"):
        flip(path, -1)
    assert main(["verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20 and "checkpoint 0 0 2" in [" ".join(line.split()) for line in lines], lines
    named = [
        line for line in lines if line.startswith(f"{NAME} is broken at checkpoint: data/models/{NAME}.safetensors: ")
    ]
    assert len(named) == 1 and named[0].endswith(
        "restore it from git (data/models), or train it again with `dvc repro`"
    )
    assert main(["verify", "--all"]) == 1
    assert sum("  checkpoint: broken; " in line for line in capsys.readouterr().out.splitlines()) == 2


def test_step_of_the_github_action_fails_if_a_link_is_broken(root: Path, tmp_path: Path) -> None:
    """The shell step literally, as a runner starts bash."""
    (step,) = yaml.safe_load((REPOSITORY / ".github/actions/verify/action.yml").read_text(encoding="utf-8"))["runs"][
        "steps"
    ]
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    given = {"COMMAND": f"{sys.executable} -m stages.cli", "ARGUMENTS": NAME, "RUNNER_TEMP": str(tmp_path)}

    def run(**more: str) -> tuple[int, str]:
        environment = os.environ | files | given | more
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(bash, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout

    assert (
        run() == (0, "") and json.loads((tmp_path / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8"))["broken"] == 0
    )
    flip(root / "data" / "models" / f"{NAME}.safetensors", -1)
    code, output = run()
    assert code == 1 and output.startswith(f"::error::{NAME}: checkpoint: data/models/{NAME}.safetensors: ")
    last = (tmp_path / "GITHUB_OUTPUT").read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("totals={") and json.loads(last.removeprefix("totals="))["broken"] == output.count(
        "::error::"
    )
    assert run(ARGUMENTS="no-such-checkpoint") == (1, "")


def test_many_broken_checkpoints_still_fit_twenty_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links = tuple(Link(name, "broken", "x") for name in REMEDIES if name != "record")
    trails = [Trail(f"toy.arm.{number}", links) for number in range(99)]
    monkeypatch.setattr("stages.upkeep.verifying.verify", lambda *_, **__: (Link("record", "broken", "x"), trails))
    assert main(["verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20 and "and 95 more, which `claimcheck verify --all` lists" in lines


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def in_evidence(root: Path, text: str) -> tuple[Path, int]:
    """Return the evidence file and the position of `text` in the line of the model's arm."""
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
    path = root / "params" / "ninformer-cifar10.yaml"  # MNIST's inherits from it
    flip(path, path.read_bytes().rindex(b" dim: 256") + len(b" dim: 25"))


def flip_revision(root: Path) -> None:
    """Also recompute the line's digest, as a forger would."""
    path = root / EVIDENCE
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        revision = line["origin"]["revision"]
        line["origin"]["revision"] = f"{int(revision[0], 16) ^ 1:x}{revision[1:]}"
    path.write_text("".join(f"{canonical_json(seal(line))}\n" for line in lines), encoding="utf-8")
    retract(root, read_versions(root), date="2026-01-01", why="What a forger would write, too")
    record(root, "data/results.db", evidence_only=True)


def write(root: Path, change: str) -> None:
    """Change the database directly."""
    with sqlite3.connect(root / "data" / "results.db") as connection:
        assert connection.execute(f"UPDATE {change}").rowcount
    connection.close()


def change_seed(root: Path) -> None:
    write(root, "results SET spec = json_set(spec, '$.replicate.seed', 77)")


def change_data_digest(root: Path) -> None:
    write(root, "results SET data_digest = replace(data_digest, substr(data_digest, 1, 8), '00000000')")


def change_thread_count(root: Path) -> None:
    write(root, "results SET environment = json_set(environment, '$.threads', 77)")


def change_accuracy(root: Path) -> None:
    write(root, "metrics SET value = 0.9999 WHERE metric = 'accuracy'")


def change_curve(root: Path) -> None:
    write(root, "epochs SET test_accuracy = 0.9999 WHERE epoch = 3")


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (flip_weights, "checkpoint"),
        (change_seed, "run"),
        (flip_params, "params"),
        (flip_revision, "code"),
        (change_data_digest, "checkpoint"),
        (change_thread_count, "environment"),
        (change_accuracy, "metrics"),
        (change_curve, "metrics"),
    ],
)
def test_damage_breaks_the_link_that_contains_it(
    root: Path, intact: tuple[Link, Trail], damage: Callable[[Path], None], broken: str
) -> None:
    damage(root)
    trail = trail_of(root)
    if broken == "code" and statuses(intact[1])["code"] == "not here":
        pytest.skip("a shallow clone has no history to look a revision up in")
    assert trail.broken is not None and trail.broken.name == broken, trail
    assert statuses(trail)[broken] == "broken"


def test_missing_last_row_of_a_table_is_reported(root: Path) -> None:
    with sqlite3.connect(root / "data" / "results.db") as connection:
        connection.execute("DELETE FROM papers WHERE name = (SELECT max(name) FROM papers)")
    connection.close()
    recorded, _ = verify_one(root)
    assert (recorded.status, recorded.detail.partition(";")[0]) == ("broken", "table papers is not what the files give")


def test_evidence_edited_after_recording_is_reported(root: Path) -> None:
    path, place = in_evidence(root, '"accuracy"')
    place = path.read_bytes().index(b'"value":0.', place) + len('"value":0.')
    flip(path, place)
    recorded, _ = verify_one(root)
    assert recorded.status == "broken" and "it was changed after it was published" in recorded.detail
    assert "ninformer-mnist.jsonl, line" in recorded.detail


def test_selecting_another_profile_does_not_break_the_record(root: Path) -> None:
    params = root / "params.yaml"
    params.write_text(
        params.read_text(encoding="utf-8").replace("profile: smoke", "profile: quick", 1), encoding="utf-8"
    )
    recorded, _ = verify_one(root)
    assert recorded.status == "holds", recorded


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("params/ninformer-cifar10.yaml", "seeds: [0, 1, 2, 3, 4]", "seeds: [1, 2, 3, 4, 5]"),
        ("params.yaml", "  quick:\n", "  other:\n"),
    ],
)
def test_params_that_no_longer_plan_published_runs_break_the_record(
    root: Path, file: str, before: str, after: str
) -> None:
    content = (root / file).read_text(encoding="utf-8")
    assert before in content
    (root / file).write_text(content.replace(before, after, 1), encoding="utf-8")
    recorded, trail = verify_one(root)
    assert recorded.status == "broken" and recorded.detail.startswith("PLAN CHANGED: "), recorded
    assert EVIDENCE in recorded.detail and statuses(trail)["params"] == "broken"


def test_differing_canaries_break_the_record(root: Path) -> None:
    for row in (1, 2):
        process = f'json(\'{{"modules": {{}}, "canary": {{"of": "a", "digest": "00000000000{row}"}}}}\')'
        write(root, f"results SET environment = json_set(environment, '$.process', {process}) WHERE id = {row}")
    recorded, _ = verify_one(root)
    assert (recorded.status, recorded.detail.partition(":")[0]) == ("broken", "CANARIES DIFFER")


def run_of(root: Path) -> tuple[ResultLine, Path]:
    """Return the model's published line and its run folder, as if it had been trained here."""
    line = next(line.result for line in read_lines(root / EVIDENCE, EvidenceLine) if line.result.arm == "ninformer")
    folder = root / "data" / "runs" / line.experiment / line.run_key
    folder.mkdir(parents=True)
    weights = b"weights"
    rows = [{name: value for name, value in vars(row).items() if value is not None} for row in line.curves]
    result = {"run_key": line.run_key, "environment_digest": line.environment_digest}
    files = seal_outcome(
        {
            "spec.json": canonical_json(line.spec).encode(),
            "history.jsonl": "".join(canonical_json(row) + "\n" for row in rows).encode(),
            "result.json": canonical_json({**result, "weights_sha256": hashlib.sha256(weights).hexdigest()}).encode(),
            "weights.safetensors": weights,
        }
    )
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return line, folder


@pytest.mark.parametrize("forged", [False, True])
def test_history_edited_after_training_is_reported(root: Path, forged: bool) -> None:
    _, folder = run_of(root)
    assert statuses(trail_of(root))["metrics"] == "holds"
    path = folder / "history.jsonl"
    *rows, last = path.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "\n".join([*rows, canonical_json({**json.loads(last), "test_accuracy": 0.9999})]) + "\n", encoding="utf-8"
    )
    if forged:
        files = seal_outcome({file.name: file.read_bytes() for file in folder.iterdir()})
        (folder / "result.json").write_bytes(files["result.json"])
    link = trail_of(root).links[-1]
    assert (link.name, link.status) == ("metrics", "broken")
    named = "its curves are not those of" if forged else "history.jsonl or result.json is not as published"
    assert named in link.detail and folder.relative_to(root).as_posix() in link.detail


def test_predictions_are_recomputed_from_the_weights(tmp_path: Path) -> None:
    """On noise images, of which the released model gets some right."""
    line = next(line for line in read_lines(REPOSITORY / EVIDENCE, EvidenceLine) if line.release is not None).result
    weights = REPOSITORY / "data" / "models" / f"{line.experiment}.{line.arm}.{line.replicate}.safetensors"
    generator = np.random.default_rng(0)
    sets = {
        split: ImageSet(generator.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), np.arange(count) % 10)
        for split, count in (("train", 10), ("test", 300))
    }
    packed = tmp_path / "mnist"
    pack_images(packed, "mnist", sets["train"], sets["test"], "0123456789", provenance="full", source="official")
    line = dataclasses.replace(line, data=dataclasses.replace(line.data, test_images=300))
    scores = recompute(weights, packed, line)
    line = dataclasses.replace(line, metrics=scores.metrics, correct=scores.correct, confusion=scores.confusion)
    accuracy = next(row.value for row in scores.metrics if row.metric == "accuracy")
    assert 0 < accuracy < 1
    assert [*spot_check(weights, packed, line), *compare(line, scores), *compare_released(line, scores, accuracy)] == []
    for edited in ("accuracy", "loss", "calibration_error", "parameters", "flops_per_image"):
        metrics = [
            dataclasses.replace(row, value=row.value * 1.5) if row.metric == edited else row for row in line.metrics
        ]
        (said,) = compare(dataclasses.replace(line, metrics=tuple(metrics)), scores)
        assert said.startswith(f"{edited} is recorded as ")
    (said,) = compare_released(line, scores, 0.9999)
    assert said.startswith("accuracy is recorded as 0.9999, the released weights give ")
    assert line.correct is not None
    other = dataclasses.replace(line, correct=pack_correct(~unpack_correct(line.correct, 300)))
    assert [text.split(" images ")[0] for text in (*spot_check(weights, packed, other), *compare(other, scores))] == [
        "256 of 256",
        "300 of 300",
    ]


def test_unknown_checkpoint_lists_the_known_ones(clone: Path) -> None:
    with pytest.raises(UnknownCheckpoint, match=NAME):
        verify(clone, str(clone / "data" / "results.db"), ["x"])


def test_available_data_are_digested_again(tmp_path: Path) -> None:
    images = ImageSet(np.arange(96, dtype=np.uint8).reshape(6, 1, 4, 4), np.arange(6) % 2)
    info = pack_images(tmp_path / "tiny", "tiny", images, images, "ab", provenance="full", source="official")
    folder, zeros = tmp_path / "tiny", "0" * 64
    assert check_data(folder, zeros, zeros).status == "not here", "another preparation of the same data set"
    assert check_data(folder, info.digest, zeros).status == "broken"
    description = folder / "dataset.json"
    content = description.read_text(encoding="utf-8")
    description.write_text(content.replace(info.digest, zeros), encoding="utf-8")
    assert check_data(folder, info.digest, info.digest).status == "broken", "its description was changed"
    description.write_text(content, encoding="utf-8")
    table = pack_table(tmp_path / "line", np.ones((300, 3), np.float32), np.arange(300, dtype=np.float32))
    train, test = (TokenSet(np.arange(start, start + 9, dtype=np.uint16)) for start in (0, 9))
    text = dataclasses.replace(table, dataset="text", kind="text", shape=(4,), digest=digest_tokens(train, test, 4))
    write_packed(tmp_path / "text", {"train": train, "test": test}, text)
    splits = ((folder, info, "train"), (tmp_path / "line", table, "test"), (tmp_path / "text", text, "test"))
    for folder, info, split in splits:
        assert check_data(folder, info.digest, info.digest).status == "holds"
        flip(folder / f"{split}.safetensors", -1)
        assert check_data(folder, info.digest, info.digest).status == "broken"
