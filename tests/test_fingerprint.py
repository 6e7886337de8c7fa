"""The code fingerprint: explaining code changes nothing, changing it does, and the closure is complete."""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import subprocess
import tokenize
from pathlib import Path

import pytest

from stages.datasets.packed import Kind
from stages.faults import in_one_line
from stages.runs.fingerprint import (
    CHOOSING,
    PACKAGE_ROOT,
    TRAINING_ROOTS,
    code_fingerprint,
    import_closure,
    imported_modules,
    is_fast,
    module_digest,
    significant_text,
)
from tests.preloaded import python

SOURCE = '''"""What it is."""
import math  # for pi

def area(r):
    """πr²"""
    # the formula
    return f"{math.pi * r**2} # not a comment"
'''
BARE = 'import math\ndef area(r):\n    return f"{math.pi * r**2} # not a comment"'


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    assert significant_text(SOURCE) == BARE


def test_code_and_strings_count() -> None:
    assert significant_text(SOURCE.replace("r**2", "r**3")) != BARE
    assert significant_text(SOURCE.replace("# not", "# nota")) != BARE


def test_docstring_beside_umlauts_and_several_lines() -> None:
    source = 'def f():\n    """a\n    é"""; return "ü"\n'
    assert significant_text(source) == 'def f():\n    ; return "ü"'


def tokens_that_count(source: str) -> str:
    """The same computed differently: all tokens but comments and docstrings, without white space."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kept = [token.string for token in tokens if token.type != tokenize.COMMENT and token.start not in docstrings]
    return "".join("".join(kept).split())


@pytest.mark.parametrize("path", sorted((PACKAGE_ROOT / "stages").rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_but_comments_and_docstrings_is_lost(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "".join(significant_text(source).split()) == tokens_that_count(source)


def test_closure_follows_imports_and_holds_the_model() -> None:
    closure = import_closure([*TRAINING_ROOTS["images"], "stages.papers.ninformer.ninformer"])
    assert {
        "stages.training.augment",
        "stages.training.seeding",
        "stages.ops.normalize",
        "stages.papers.ninformer.layers",
        "stages.papers.ninformer.mlp_mixer",
    } <= closure
    assert "stages.papers.ninformer.local_vit" not in closure, "another arm's model is none of its business"


def test_fast_paths_are_in_no_run_key_and_the_operators_that_call_them_are() -> None:
    closure = import_closure(["stages.papers.hyperbf.hyperbf", "stages.papers.dac.resnet_v1"])
    assert {"stages.ops.rbf_fused", "stages.ops.dac_recompute", "stages.ops.precision"} <= closure
    assert is_fast("stages.ops.fast.dac") and "stages.ops.fast.dac" in imported_modules("stages.ops.dac_recompute")
    assert not any(is_fast(module) for module in closure)
    assert not is_fast("fast") and not is_fast("mine.ops.fast.dac") and not is_fast("stages.ops.faster")


@pytest.mark.parametrize(("kind", "model"), [("images", "ninformer.vit"), ("table", "dac.mlp"), ("text", "nmn.gpt2")])
def test_closure_holds_every_module_that_training_really_loads(kind: Kind, model: str) -> None:
    """Against the interpreter: what `import` brings in of ours is in the static closure."""
    roots = [*TRAINING_ROOTS[kind], f"stages.papers.{model}"]
    script = f"import sys, {', '.join(roots)}; print(*[m for m in sys.modules if m.startswith('stages.')])"
    done = python("-c", script, cwd=PACKAGE_ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    packages = {name for name in loaded if (PACKAGE_ROOT / Path(*name.split("."))).is_dir()}
    # The paper's package imports all its models, and a fast path answers to its reference by test.
    siblings = import_closure([f"stages.papers.{model.partition('.')[0]}"])
    fast = {name for name in loaded if is_fast(name)}
    # Whoever chooses among modules imports them all, and what is chosen is a root.
    others = import_closure(name for module in CHOOSING for name in imported_modules(module))
    assert set(loaded) - packages - siblings - fast - others <= import_closure(roots)


def test_a_module_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ModuleNotFoundError, match="os is not a module"):
        code_fingerprint(["os"])


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_digests_are_the_same_in_other_pythons(version: str) -> None:
    roots = [*TRAINING_ROOTS["images"], "stages.papers.ninformer.local_vit"]
    script = f"from stages.runs.fingerprint import code_fingerprint as f; print(f({roots!r}))"
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"no python{version} on this machine")
    other = subprocess.run([found, "-c", script], capture_output=True, text=True, check=True, cwd=PACKAGE_ROOT)
    assert other.stdout.strip() == str(code_fingerprint(roots))


@pytest.mark.parametrize(
    ("content", "said"), [(b"def f(:\n", r"line 1: .*invalid syntax"), (b"x = '\xff'\n", "not UTF-8 at byte 5")]
)
def test_a_module_that_cannot_be_parsed_is_named_in_one_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(content)

    @in_one_line("inputs")
    def verb() -> int:
        module_digest(path)
        return 0

    assert verb() == 1
    assert re.fullmatch(
        rf"inputs: {path}.*{said}; mend it, or put it back \(`git checkout {path}`\), .*\n", capsys.readouterr().err
    )
