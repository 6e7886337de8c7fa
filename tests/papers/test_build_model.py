import subprocess
import sys
from pathlib import Path

import pytest

from stages.papers import build_model, model_paths
from stages.run import ModelSpec

ROOT = Path(__file__).parents[2]
VIT = "stages.papers.ninformer.vit:ViT"
ARGUMENTS = {
    "image_size": 8,
    "in_channels": 1,
    "num_classes": 2,
    "patch_size": 4,
    "dim": 4,
    "depth": 1,
    "num_heads": 2,
    "mlp_dim": 4,
    "dropout": 0.0,
}


def test_a_spec_becomes_the_class_it_names() -> None:
    from stages.papers.ninformer import ViT

    assert type(build_model(ModelSpec(path=VIT, arguments=ARGUMENTS))) is ViT


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "stages.papers.ninformer.vit:ViTBlock",
        "stages.papers.ninformer.vit:nn",
        "stages.papers.ninformer.layers:FeedForward",
        "stages.papers.ninformer:ViT",
        "stages.papers.ninformer.vit",
        "stages.papers.ninformer.vit:ViT:ViT",
        "",
    ],
)
def test_a_path_that_no_paper_exports_is_refused_with_the_choices(path: str) -> None:
    with pytest.raises(ValueError, match=r"known: .*stages\.papers\.ninformer\.vit:ViT"):
        build_model(ModelSpec(path=path, arguments=ARGUMENTS))


def test_a_hostile_path_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="hostile_module"):
        build_model(ModelSpec(path="hostile_module:Model", arguments={}))
    assert "hostile_module" not in sys.modules


def test_a_misspelt_argument_is_named() -> None:
    arguments = {("num_head" if key == "num_heads" else key): value for key, value in ARGUMENTS.items()}
    with pytest.raises(TypeError, match=r"unknown argument num_head; it takes image_size, .*num_heads"):
        build_model(ModelSpec(path=VIT, arguments=arguments))


def test_a_missing_argument_is_named() -> None:
    arguments = {key: value for key, value in ARGUMENTS.items() if key != "dim"}
    with pytest.raises(TypeError, match="missing argument dim; it takes"):
        build_model(ModelSpec(path=VIT, arguments=arguments))


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, stages.papers; stages.papers.model_paths(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_known_path_names_a_class() -> None:
    import importlib

    for path in model_paths():
        module, _, name = path.partition(":")
        assert isinstance(getattr(importlib.import_module(module), name), type)
