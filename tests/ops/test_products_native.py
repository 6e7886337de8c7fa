"""Products by oneDNN equal PyTorch's up to rounding, for any layout of operands; what doesn't fit stays PyTorch's."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops import products_native
from stages.ops.products_native import has_fast_products, use_fast_products
from stages.training.environment import describe_environment

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """For these tests only, and on every processor."""
    products_native._register.cache_clear()
    assert not has_fast_products()
    BY_PYTORCH.update({name: product() for name, product in LEFT_ALONE.items()})
    with patch.object(products_native, "_mkl_is_held_back", lambda: True):
        assert use_fast_products() and has_fast_products()
        library = products_native._register()
        assert use_fast_products() and products_native._register() is library
        yield
    library._destroy()
    products_native._register.cache_clear()


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Rows, lengths of sums and columns of products that went to oneDNN, and none that it can't take or is slow at."""
    sizes: list[tuple[int, ...]] = []
    real = torch.ops.mkldnn._linear_pointwise.default

    def recorded(a: Tensor, weight: Tensor, bias: Tensor | None, *rest: object) -> Tensor:
        assert weight.is_contiguous() or weight.t().is_contiguous()
        assert bias is None or bias.is_contiguous()
        sizes.append((*a.shape, len(weight)))
        return real(a, weight, bias, *rest)

    monkeypatch.setattr(torch.ops.mkldnn._linear_pointwise, "default", recorded)
    return sizes


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def strided(rows: int, columns: int) -> Tensor:
    """With gaps within rows and between them."""
    return draw(2 * rows, 3 * columns)[::2, ::3]


LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "whole": draw,
    "transposed": lambda rows, columns: draw(columns, rows).t(),
    "rows of something wider": lambda rows, columns: draw(rows, columns + 5)[:, 3:-2],
    "with gaps": strided,
    "one row for all": lambda rows, columns: draw(1, columns).expand(rows, columns),
    "one column for all": lambda rows, columns: draw(rows, 1).expand(rows, columns),
    "one number for all": lambda rows, columns: draw(1, 1).expand(rows, columns),
}
SIZES = [(130, 128, 140), (300, 700, 12), (12, 700, 300), (4, 1100, 700), (2100, 300, 5), (300, 20, 400)]


def assert_close(found: Tensor, *factors: Tensor, bias: Tensor | None = None) -> None:
    wanted = factors[0].double() @ factors[1].double() + (0 if bias is None else bias.double())
    assert found.dtype == torch.float32 and found.is_contiguous() and found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_products_of_any_layout(
    left: str, right: str, rows: int, inner: int, columns: int, handed_over: list[tuple[int, ...]]
) -> None:
    a, b, bias = LAYOUTS[left](rows, inner), LAYOUTS[right](inner, columns), draw(2 * columns)[::2]
    assert_close(a @ b, a, b)
    assert_close(torch.addmm(bias, a, b), a, b, bias=bias)
    if rows < 256 and right not in ("whole", "transposed"):
        assert not handed_over, "a copy of the right side wouldn't pay"
        return
    is_turned = a.stride(0) == 1 and rows > columns and inner > 2 * columns
    assert is_turned == (left in ("transposed", "one column for all") and columns in (12, 5))
    size = (rows, inner, columns)
    assert handed_over == [size[::-1] if is_turned else size, size]
    for out in (torch.full((rows, columns), torch.nan), torch.full((columns, rows), torch.nan).t()):
        assert torch.mm(a, b, out=out) is out
        assert_close(out.contiguous(), a, b)


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_stacks_of_products(left: str, right: str, handed_over: list[tuple[int, ...]]) -> None:
    a = LAYOUTS[left](280, 170).expand(2, 280, 170)
    b = torch.stack([LAYOUTS[right](170, 100)] * 2).mul(torch.tensor([1.0, -2.0]).view(2, 1, 1))
    b = b if right == "whole" else LAYOUTS[right](170, 100).expand(2, 170, 100)
    found, out = torch.bmm(a, b), torch.empty(2, 280, 100)
    torch.bmm(a, b, out=out)
    assert handed_over == [(280, 170, 100)] * 4 and torch.equal(found, out)
    for each, *factors in zip(found, a, b, strict=True):
        assert_close(each, *factors)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_its_gradients(bias: bool, handed_over: list[tuple[int, ...]]) -> None:
    leaves = [draw(6, 65, 96), draw(160, 96), *([draw(160)] if bias else [])]
    fast = [leaf.clone().requires_grad_() for leaf in leaves]
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    outs = [F.linear(*some).square() for some in (fast, wide)]
    for out in outs:
        out.sum().backward()
    assert len(handed_over) == 3
    torch.testing.assert_close(outs[0].double(), outs[1], rtol=1e-4, atol=1e-3)
    for ours, reference in zip(fast, wide, strict=True):
        torch.testing.assert_close(ours.grad.double(), reference.grad, rtol=1e-4, atol=1e-2)
        assert ours.grad.is_contiguous()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:FutureWarning")  # of torch.func itself
def test_second_derivatives_and_transforms(handed_over: list[tuple[int, ...]]) -> None:
    a, b = draw(140, 128).requires_grad_(), draw(128, 130)
    (first,) = torch.autograd.grad((a @ b).pow(3).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    twin = a.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad((twin @ b.double()).pow(3).sum(), twin, create_graph=True)
    torch.testing.assert_close(second.double(), torch.autograd.grad(wanted.sum(), twin)[0], rtol=1e-3, atol=1e-1)
    tangent = torch.func.jvp(lambda rows: rows @ b, (a.detach(),), (draw(140, 128),))[1]
    assert_close(tangent, draw(140, 128), b)
    mapped = torch.func.vmap(torch.mm, in_dims=(0, None))(a.detach().expand(3, 140, 128), b)
    assert_close(mapped[2].contiguous(), a.detach(), b)
    assert len(handed_over) >= 6


def test_compiled_code_has_them(handed_over: list[tuple[int, ...]]) -> None:
    a, b = draw(150, 140).requires_grad_(), draw(140, 130)
    compiled = torch.compile(lambda left, right: torch.mm(left, right).relu().sum(), backend="aot_eager")
    compiled(a, b).backward()
    assert len(handed_over) == 2
    torch.testing.assert_close(a.grad, (a.detach() @ b > 0).float() @ b.t(), rtol=1e-4, atol=1e-3)


LEFT_ALONE: dict[str, Callable[[], Tensor]] = {
    "small": lambda: draw(20, 30) @ draw(30, 20),
    "just too small": lambda: draw(128, 127) @ draw(127, 128),
    "short sums": lambda: draw(2000, 15) @ draw(15, 2000),
    "few columns": lambda: draw(2000, 2000) @ draw(2000, 3),
    "a right side with gaps": lambda: draw(255, 200) @ draw(200, 300)[:, 50:250],
    "few rows": lambda: draw(3, 2000) @ draw(2000, 2000),
    "float64": lambda: draw(200, 200, dtype=torch.float64) @ draw(200, 200, dtype=torch.float64),
    "bfloat16": lambda: draw(200, 200, dtype=torch.bfloat16) @ draw(200, 200, dtype=torch.bfloat16),
    "whole numbers": lambda: torch.ones(200, 200, dtype=torch.int64) @ torch.ones(200, 200, dtype=torch.int64),
    "complex": lambda: draw(200, 200).to(torch.complex64) @ draw(200, 200).to(torch.complex64),
    "nothing": lambda: torch.mm(draw(0, 2000), draw(2000, 2000)),
    "sums of nothing": lambda: torch.mm(draw(2000, 0), draw(0, 2000)),
    "an empty stack": lambda: torch.bmm(draw(0, 200, 200), draw(0, 200, 200)),
    "into a place": lambda: torch.mm(
        *[draw(200, 200).double()] * 2, out=torch.full((200, 200), torch.nan).double().t()
    ),
    "a stack into a place": lambda: torch.bmm(*[draw(9, 50, 50)] * 2, out=torch.full((9, 50, 50), torch.nan)),
    "a bias of no number, unused": lambda: torch.addmm(
        torch.full((200,), torch.nan), draw(200, 200), draw(200, 200), beta=0, out=torch.empty(200, 200)
    ),
    "bfloat16 with a bias": lambda: torch.addmm(*[x.bfloat16() for x in (draw(200), draw(200, 200), draw(200, 200))]),
    "scaled": lambda: torch.addmm(draw(200), draw(200, 200), draw(200, 200), alpha=0.5),
    "bias scaled": lambda: torch.addmm(draw(200), draw(200, 200), draw(200, 200), beta=2),
    "a whole matrix added": lambda: torch.addmm(draw(200, 200), draw(200, 200), draw(200, 200)),
    "one number added": lambda: torch.addmm(draw(1), draw(200, 200), draw(200, 200)),
    "small ones in a stack": lambda: torch.bmm(draw(9, 150, 150), draw(9, 150, 150)),
}


# Filled before anything is replaced.
BY_PYTORCH: dict[str, Tensor] = {}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_the_rest_is_pytorchs(name: str, handed_over: list[tuple[int, ...]]) -> None:
    found, wanted = LEFT_ALONE[name](), BY_PYTORCH[name]
    assert torch.equal(found, wanted) and found.dtype == wanted.dtype and found.stride() == wanted.stride()
    assert not handed_over


def test_without_onednn_there_is_none(handed_over: list[tuple[int, ...]]) -> None:
    torch.backends.mkldnn.enabled = False
    try:
        assert_close(draw(200, 200) @ draw(200, 200), draw(200, 200), draw(200, 200))
    finally:
        torch.backends.mkldnn.enabled = True
    assert not handed_over
    assert_close(draw(200, 200) @ draw(200, 200), draw(200, 200), draw(200, 200))
    assert handed_over


LONG: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda a: a @ a,
    "addmm": lambda a: torch.addmm(a, a, a),
    "bmm": lambda a: torch.bmm(a.expand(1, -1, -1), a.expand(1, -1, -1)),
}


@pytest.mark.parametrize("name", LONG)
def test_other_threads_go_on_meanwhile(name: str) -> None:
    """PyTorch takes a third of a second or more for these: the interpreter's lock is free."""
    a, longest = draw(1000, 1000, dtype=torch.float64).repeat(2, 2), 0.0
    started, stop = threading.Event(), threading.Event()

    def tick() -> None:
        nonlocal longest
        before = time.perf_counter()
        while not stop.is_set():
            time.sleep(0.0005)
            started.set()
            before, longest = time.perf_counter(), max(longest, time.perf_counter() - before)

    thread = threading.Thread(target=tick)
    thread.start()
    started.wait()
    began = time.perf_counter()
    LONG[name](a)
    took = time.perf_counter() - began
    stop.set()
    thread.join()
    assert longest < took / 2


WRONG: dict[str, Callable[[], Tensor]] = {
    "another length": lambda: torch.mm(draw(200, 200), draw(201, 200)),
    "a vector": lambda: torch.mm(draw(4000), draw(4000, 900)),
    "two stacks": lambda: torch.mm(draw(2, 200, 200), draw(2, 200, 200)),
    "another type": lambda: torch.mm(draw(200, 200), draw(200, 200).double()),
    "a bias of another length": lambda: torch.addmm(draw(7), draw(200, 200), draw(200, 200)),
    "a bias of another type": lambda: torch.addmm(draw(200).double(), draw(200, 200), draw(200, 200)),
    "stacks of another length": lambda: torch.bmm(draw(2, 200, 200), draw(3, 200, 200)),
    "a stack and a matrix": lambda: torch.bmm(draw(2, 200, 200), draw(200, 200)),
    "a place of another type": lambda: torch.mm(draw(200, 200), draw(200, 200), out=draw(200, 200).double()),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_pytorchs_words(name: str) -> None:
    with pytest.raises(RuntimeError) as ours:
        WRONG[name]()
    with patch.object(products_native, "_gains", lambda *product: False), pytest.raises(RuntimeError) as theirs:
        WRONG[name]()
    assert str(ours.value) == str(theirs.value)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
def test_a_place_of_another_shape_is_made_to_fit() -> None:
    out = torch.empty(3)
    torch.mm(draw(200, 200), draw(200, 200), out=out)
    assert_close(out, draw(200, 200), draw(200, 200))


def test_numbers_that_are_none_stay_so() -> None:
    a = draw(200, 200)
    a[3, 5], a[7, 9] = torch.nan, torch.inf
    found = a @ torch.ones(200, 200)
    assert found[3].isnan().all() and (found[7] == torch.inf).all() and found[4].isfinite().all()


@pytest.mark.parametrize(
    ("maker", "family", "answer"),
    [
        ("AuthenticAMD", 26, True),
        ("AuthenticAMD", 25, False),
        ("AuthenticAMD", 27, False),
        ("GenuineIntel", 26, False),
        ("AuthenticAMD", "", False),
    ],
)
def test_a_processor_is_known_by_its_family(maker: str, family: int | str, answer: bool) -> None:
    text = f"processor\t: 0\nvendor_id\t: {maker}\ncpu family\t: {family}\nmodel\t\t: 2\n"
    assert products_native._is_zen_5(text) is answer


def test_the_environment_says_so() -> None:
    assert describe_environment(CPU)["float32_products"] == "oneDNN"
    assert "float32_products" not in describe_environment(torch.device("meta"))


@pytest.mark.parametrize("is_held_back", [True, False])
def test_a_process_that_was_not_asked_has_pytorchs(is_held_back: bool) -> None:
    """In its own process, since products belong to the process; one where MKL does well also has them once asked."""
    code = (
        "from stages.ops import products_native as p; from stages.training.environment import *; import torch\n"
        f"p._mkl_is_held_back = lambda: {is_held_back}\n"
        "said = lambda: describe_environment(torch.device('cpu')).get('float32_products')\n"
        "before = said(); p.use_fast_products(); print(before, said())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == (f"None {'oneDNN' if is_held_back else None}", "")
