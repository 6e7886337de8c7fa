import time
from pathlib import Path

import pytest

from service.database.queries import ServedCheckpoint, list_checkpoints
from service.inference.predictors import KEEP_SECONDS, PredictorCache, weight_bytes
from service.inference.workers import Models
from stages.checkpoint.contract import CheckpointError
from stages.checkpoint.predictor import Predictor, load_predictor
from stages.results import open_results

ARMS = ("vit", "mlp-mixer", "local-vit")


@pytest.fixture(scope="module")
def served_checkpoints(root: Path) -> dict[str, ServedCheckpoint]:
    with open_results(str(root / "data" / "results.db"))() as session:
        return {one.arm: one for one in list_checkpoints(session, experiment="ninformer-cifar100")}


def cache_of(budget_bytes: int = 1 << 30) -> PredictorCache:
    return PredictorCache(device="cpu", budget_bytes=budget_bytes)


def test_recently_used_models_stay_within_the_budget(
    root: Path, served_checkpoints: dict[str, ServedCheckpoint]
) -> None:
    sizes = {arm: weight_bytes(load_predictor(root / served_checkpoints[arm].path)) for arm in ARMS}
    cache = cache_of(sum(sizes.values()) - 1)

    def get(arm: str) -> Predictor:
        return cache.get(root / served_checkpoints[arm].path, served_checkpoints[arm].sha256)

    first = get("vit")
    get("mlp-mixer")
    assert get("vit") is first
    get("local-vit")
    assert served_checkpoints["mlp-mixer"].sha256 not in cache.loaded, "used before the ViT was used again"
    assert get("vit") is first
    assert cache.size_bytes == sizes["vit"] + sizes["local-vit"]


def test_client_evicts_its_own_weights_before_those_of_lighter_clients(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_results(str(root / "data" / "results.db"))() as session:
        same = [one for one in list_checkpoints(session, experiment="ninformer-mnist") if one.arm == "vit"]
    cache = cache_of(int(2.5 * weight_bytes(load_predictor(root / same[0].path))))

    def get(client: str, *places: int) -> set[int]:
        for place in places:
            cache.get(root / same[place].path, same[place].sha256, client)
        return {place for place, one in enumerate(same) if one.sha256 in cache.loaded}

    get("polite", 0)
    assert get("greedy", 1, 2) == {0, 2}
    get("greedy", 0)
    assert get("greedy", 1) == {0, 1}, "the light client used it recently as well"
    assert get("third", 2) == {1, 2}, "the heaviest client makes room for lighter ones"
    later = time.monotonic() + KEEP_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert get("greedy", 0) == {0, 2}, "unused models are evicted, least recently used first"


def test_model_beyond_the_budget_is_kept_alone(root: Path, served_checkpoints: dict[str, ServedCheckpoint]) -> None:
    cache = cache_of(1)
    for arm in ARMS:
        cache.get(root / served_checkpoints[arm].path, served_checkpoints[arm].sha256)
    assert [arm for arm in ARMS if served_checkpoints[arm].sha256 in cache.loaded] == ["local-vit"]


def test_flipped_byte_changes_the_digest(
    root: Path, tmp_path: Path, served_checkpoints: dict[str, ServedCheckpoint]
) -> None:
    content = bytearray((root / served_checkpoints["vit"].path).read_bytes())
    content[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected sha256"):
        cache_of().get(tmp_path / "weights.safetensors", served_checkpoints["vit"].sha256)
    with pytest.raises(CheckpointError, match="expected sha256"):
        Models(tmp_path).get("weights.safetensors", served_checkpoints["vit"].sha256)
