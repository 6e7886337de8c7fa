import hashlib
import json
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def sample_mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mirror of the small real samples stored next to the repository, laid out like by their unpacking script."""
    packed = REPOSITORY.parent / "shared" / "data"
    if not packed.is_dir():
        pytest.skip("no real samples next to the repository, in shared/data")
    mirror = tmp_path_factory.mktemp("mirror")
    content = (packed / "tiny-imagenet/tiny-imagenet-200-subset.zip").read_bytes()
    write_folder(mirror / "tinyimagenet", {"tiny-imagenet-200.zip": content})
    for name, archive in (("imagenette", "imagenette2-224"), ("isic2019", "isic-2019-224")):
        write_folder(mirror / name, unzipped(packed / archive / f"{archive}-subset.zip"))
    write_folder(mirror / "sgemm", unzipped(packed / "sgemm/sgemm_product_dataset.zip"))
    write_folder(mirror / "tinyshakespeare", {"input.txt": (packed / "text/tinyshakespeare/input.txt").read_bytes()})
    return mirror


def unzipped(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    entries = {}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        entries[name] = {"sha256": sha256, "bytes": len(content), "official_md5": None, "matches_official": None}
    (folder / "mirror.json").write_text(json.dumps({"complete": False, "files": entries}), encoding="utf-8")
