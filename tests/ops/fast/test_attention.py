"""Attention in C++ equals the printed formulas in value and every gradient."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from stages.ops.dac import dac_conv2d
from stages.ops.fast import attention, cpp
from stages.ops.fast.dropout import Dropout
from stages.ops.rbf import rbf_attention
from stages.ops.yat import yat_attention, yat_attention_reference
from tests.ops.gradients import Layer, assert_alike, in_doubles, leaves, value_and_gradients

pytestmark = pytest.mark.skipif(cpp.load_library(attention.SOURCE) is None, reason="no C++ compiler here")


def positive(*values: float) -> list[Tensor]:
    return [torch.tensor(value, requires_grad=True) for value in values]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the C++ functions called."""
    names: list[str] = []
    real = attention._call
    monkeypatch.setattr(attention, "_call", lambda name, *rest: (names.append(name), real(name, *rest)))
    return names


@pytest.mark.parametrize("keeps_weights", [True, False])
@pytest.mark.parametrize("count", [1, 9, 67])
def test_causal_gaussian_attention_with_cached_or_recomputed_weights(
    count: int, keeps_weights: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_is_small", lambda query, value: keeps_weights)
    tensors = [*leaves((2, count, 6), (2, count, 6), (2, count, 3), (2, count)), *positive(0.4)]
    hidden = torch.ones(count, count, dtype=torch.bool).triu(1)

    def fast(q: Tensor, k: Tensor, v: Tensor, terms: Tensor, scale: Tensor) -> Tensor:
        return attention.attention(q, k, v, scale, None, key_terms=terms, is_causal=True)

    def reference(q: Tensor, k: Tensor, v: Tensor, terms: Tensor, scale: Tensor) -> Tensor:
        scores = scale * (2 * q @ k.mT - terms[:, None, :])
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v

    assert_alike(value_and_gradients(fast, tensors), value_and_gradients(reference, in_doubles(tensors)))
    assert calls == ["attention_forward", "attention_backward"]


@pytest.mark.parametrize(
    ("queries", "epsilon", "trains", "row"),
    [(12, None, True, 32), (13, None, True, 2), (12, 0.05, True, 2), (12, None, False, 2)],
    ids=["small", "larger than keys and values", "yat", "inference"],
)
def test_weights_are_cached_for_gradients_of_small_gaussian_attention(
    queries: int, epsilon: float | None, trains: bool, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Tensor] = []
    real = attention._empty
    monkeypatch.setattr(attention, "_empty", lambda *given: kept.append((memory := real(*given))[1]) or memory)
    q, k, v = leaves((2, 3, queries, 8), (2, 3, 17, 8), (2, 3, 17, 4))
    with torch.set_grad_enabled(trains):
        attention.attention(q, k, v, 0.3, epsilon)
    assert [[*memory.shape] for memory in kept] == [[6, queries, row]]
    if row > 2:
        torch.testing.assert_close(kept[0][..., :17].sum(-1), torch.ones(6, queries))


@pytest.mark.parametrize("width", [5, 16, 17, 33])
@pytest.mark.parametrize("epsilon", [None, 0.05], ids=["gaussian", "yat"])
def test_bfloat16_attention_equals_rounded_float32(epsilon: float | None, width: int, calls: list[str]) -> None:
    """All intermediate values are float32."""
    shapes = (2, 70, 3, width), (2, 83, 3, width), (2, 83, 3, 4)
    halves = [leaf.detach().bfloat16().transpose(1, 2).requires_grad_() for leaf in leaves(*shapes)]
    floats = [half.detach().float().requires_grad_() for half in halves]
    back = torch.randn(2, 3, 70, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    found, wanted = [], []
    for tensors, results in ((halves, found), (floats, wanted)):
        scale = torch.tensor(0.3, requires_grad=True)
        out = attention.attention(*tensors, scale, epsilon)
        results += [out, *torch.autograd.grad(out, [*tensors, scale], back.to(out.dtype))]
    assert calls == [
        "attention_forward_half", "attention_backward_half", "attention_forward", "attention_backward"
    ]  # fmt: skip
    assert found[0].stride() == wanted[0].stride()
    assert [result.dtype for result in found] == [*[torch.bfloat16] * 4, torch.float32]
    assert all(torch.equal(got, right.to(got.dtype)) for got, right in zip(found, wanted, strict=True))


def test_key_next_to_its_query_has_distance_zero(calls: list[str]) -> None:
    """One feature makes rounding equal everywhere; equation 4 gives negative distances here."""
    q = 1 + torch.rand(256, generator=torch.Generator().manual_seed(0))
    k = torch.nextafter(q, torch.tensor(2.0))
    unclamped = q.square() + k.square() - 2 * (q * k)
    q, k = q[unclamped < -1e-7], k[unclamped < -1e-7]
    assert len(q) > 10
    epsilon, far = 1e-8, torch.full_like(k, 100.0)
    queries, keys = q.view(-1, 1, 1, 1).requires_grad_(), torch.stack([k, far], dim=1).view(-1, 1, 2, 1)
    values = torch.tensor([1.0, 0]).view(1, 1, 2, 1).expand(len(q), -1, -1, -1).contiguous()
    mixed = attention.attention(queries, keys, values, epsilon / 8, epsilon)
    score = (q * k).double().square() / 8  # that of the far key is below 1e-7
    torch.testing.assert_close(mixed.flatten().double(), score.sigmoid(), rtol=1e-5, atol=0)
    (to_queries,) = torch.autograd.grad(mixed.sum(), queries)
    weight = score.sigmoid()
    slope = weight * (1 - weight) * (q * k).double() * k / 4
    torch.testing.assert_close(to_queries.flatten().double(), slope, rtol=1e-4, atol=0)
    assert calls == ["attention_forward", "attention_backward"]


@pytest.mark.parametrize("keys", [1, 15, 17, 33])
def test_padding_after_the_last_key_is_ignored(keys: int, calls: list[str]) -> None:
    """A zero query without epsilon would give 0 / 0."""
    q, k, v = leaves((2, 1, 5, 6), (2, 1, keys, 6), (2, 1, keys, 3))
    with torch.no_grad():
        q[..., 0, :] = 0

    def reference(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return yat_attention_reference(q, k, v, scale, torch.tensor(0.0))

    def fast(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return attention.attention(q, k, v, scale, 0.0)

    tensors = [q, k, v, *positive(0.4)]
    assert_alike(value_and_gradients(fast, tensors), value_and_gradients(reference, in_doubles(tensors)))
    assert calls == ["attention_forward", "attention_backward"]


def test_mixed_or_half_types_are_left_to_pytorch(calls: list[str]) -> None:
    q, k, v = leaves((2, 5, 6), (2, 5, 6), (2, 5, 6))
    assert attention.attention(q.bfloat16(), k, v, 0.3, None) is None
    assert attention.attention(q, k, v.bfloat16(), 0.3, None) is None
    assert attention.attention(*(leaf.half() for leaf in (q, k, v)), 0.3, None) is None
    assert not calls


@pytest.mark.parametrize("layer", [yat_attention, partial(rbf_attention, beta=0.2)])
def test_strided_heads_give_equal_results_on_any_number_of_threads(layer: Layer) -> None:
    packed = leaves((2, 9, 3 * 4 * 6))[0]

    def heads(packed: Tensor) -> list[Tensor]:
        return list(packed.unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4))

    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(value_and_gradients(lambda packed: layer(*heads(packed)), [packed]))
    finally:
        torch.set_num_threads(before)
    copied = value_and_gradients(lambda packed: layer(*(x.contiguous() for x in heads(packed))), [packed])
    assert found[0][0].transpose(1, 2).is_contiguous(), "a token's heads are adjacent, as the projection expects"
    for one, three, contiguous in zip(*found, copied, strict=True):
        assert torch.equal(one, three) and torch.equal(one, contiguous)


@pytest.mark.parametrize("size", [0.5, 2.0])
@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_of_equal_keys_share_their_weight(size: float, causal: bool, calls: list[str]) -> None:
    token = size * leaves((1, 1, 1, 16))[0].detach()
    q = k = token.expand(1, 1, 6, 16).contiguous()
    v = leaves((1, 1, 6, 5))[0]
    out = yat_attention(q.clone().requires_grad_(), k, v, is_causal=causal, epsilon=1e-5)
    (to_v,) = torch.autograd.grad(out.sum(), v)
    weights = torch.ones(6, 6).tril() if causal else torch.ones(6, 6)
    weights /= weights.sum(1, keepdim=True)
    torch.testing.assert_close(out[0, 0], weights @ v[0, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(to_v[0, 0], weights.sum(0)[:, None].expand(6, 5), rtol=1e-5, atol=1e-5)
    assert "attention_backward" in calls


@pytest.mark.parametrize("shapes", [((2, 4, 64), (2, 4, 16), (2, 4, 8)), ((2, 4, 6), (2, 9, 6), (2, 4, 8))], ids=str)
def test_mismatched_shapes_are_left_to_pytorch_to_reject(shapes: tuple[tuple[int, ...], ...], calls: list[str]) -> None:
    tensors = [torch.randn(shape) for shape in shapes]
    with pytest.raises(RuntimeError, match="size"):
        yat_attention(*tensors)
    for terms in (None, torch.randn(2, 5)):
        assert attention.attention(*tensors, 1.0, None, key_terms=terms) is None
    assert calls == []


@pytest.mark.parametrize("shapes", [((2, 0, 6), (2, 3, 6), (2, 3, 4)), ((0, 2, 6), (0, 3, 6), (0, 3, 4))], ids=str)
def test_empty_tensors_give_empty_results(shapes: tuple[tuple[int, ...], ...]) -> None:
    q, k, v = (torch.randn(shape) for shape in shapes)
    assert yat_attention(q, k, v).shape == (*q.shape[:-1], v.shape[-1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:FutureWarning")  # torch.func itself warns
def test_functional_transformations_use_pytorch(calls: list[str]) -> None:
    q, k, v = (x.detach() for x in leaves(*[(1, 2, 5, 6)] * 3))
    plain = yat_attention(q, k, v)
    calls.clear()
    torch.testing.assert_close(torch.func.vmap(yat_attention)(q, k, v), plain)
    value, _ = torch.func.jvp(lambda q: yat_attention(q, k, v), (q,), (q,))
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(yat_attention(torch._neg_view(-q), k, v), plain)
    assert calls == []


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (yat_attention, [(1, 2, 5, 6)] * 3),
        (partial(dac_conv2d, stride=1, padding=1), [(3, 4, 9, 7), (5, 4, 3, 3), (5, 4)]),
        (Dropout(0.1), [(300,)]),
        (Dropout(0.3), [(300,)]),
    ],
    ids=["attention", "DAC", "dropout of a tenth", "dropout"],
)
def test_default_dtype_has_no_effect(layer: Layer, shapes: list[tuple[int, ...]]) -> None:
    tensors, found = leaves(*shapes), []
    for default in (torch.float32, torch.float64):
        torch.manual_seed(3)
        torch.set_default_dtype(default)
        try:
            out = layer(*tensors)
            found.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
        finally:
            torch.set_default_dtype(torch.float32)
    assert found[1][0].dtype == torch.float32 and all(map(torch.equal, *found))


def weights_against_one(scores: Tensor) -> Tensor:
    """Return the weight of a key with this score next to one with score 0; 2 q·k − t of a zero query is −t."""
    count = len(scores)
    q, k = torch.zeros(count, 1, 1), torch.zeros(count, 2, 1)
    terms, v = torch.stack([torch.zeros(count), -scores], dim=1), torch.tensor([[0.0], [1.0]]).expand(count, 2, 1)
    mixed = attention.attention(q, k, v.contiguous(), 1.0, None, key_terms=terms)
    assert mixed is not None
    return mixed.flatten()


def test_exponentials_are_accurate_down_to_underflow() -> None:
    ends = [-float("inf"), -1e4, -100.0, -87.4, -87.33, -87.32]
    halves = math.log(2) * torch.arange(-125.5, 0)
    scores = torch.cat([torch.tensor(ends), halves, torch.linspace(-87.33, 0, 20_001)])
    wanted = scores.double().sigmoid().float()
    torch.testing.assert_close(weights_against_one(scores), wanted, rtol=6e-7, atol=1.18e-38)


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF, -0x7FFFFF, -1])
def test_every_nan_gives_a_nan_weight(bits: int) -> None:
    nans = torch.full((20,), bits, dtype=torch.int32).view(torch.float32)
    assert nans.isnan().all() and weights_against_one(nans).isnan().all()


@pytest.mark.parametrize("place", range(3))
def test_nan_propagates(place: int) -> None:
    tensors = leaves(*[(1, 3, 5)] * 3)
    with torch.no_grad():
        tensors[place].view(-1)[0] = float("nan")
    assert yat_attention(*tensors).isnan().any()


def test_float64_and_masks_use_pytorch(calls: list[str]) -> None:
    q, k, v = leaves(*[(1, 3, 5)] * 3)
    yat_attention(*in_doubles([q, k, v]))
    yat_attention(q, k, v, torch.ones(3, 3, dtype=torch.bool))
    assert calls == []


LAYERS: dict[str, Layer] = {
    "yat": lambda q, k, v, s: yat_attention(q, k, v, is_causal=True, scale=s, epsilon=0.1),
    "rbf": lambda q, k, v, s: rbf_attention(q, k, v, beta=s),
    "rbf, free metric": lambda q, k, v, s: rbf_attention(q, k, v, beta=s, metric=torch.eye(16)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["yat", "rbf", "rbf, free metric"])
def test_compiled_attention_keeps_its_kernels(name: str, dtype: torch.dtype, calls: list[str]) -> None:
    heads = [x.detach().transpose(1, 2).requires_grad_() for x in leaves(*[(2, 9, 3, 16)] * 3, dtype=dtype)]
    tensors = [*heads, *positive(0.4)]
    eager = value_and_gradients(LAYERS[name], tensors)
    in_eager = calls.copy()
    calls.clear()
    compiled = value_and_gradients(torch.compile(LAYERS[name], backend="aot_eager", fullgraph=True), tensors)
    assert calls == in_eager and (calls or dtype == torch.bfloat16)
    assert all(torch.equal(*pair) for pair in zip(compiled, eager, strict=True))


def test_operators_are_described_correctly_to_compilers() -> None:
    query, key, value = (x.detach().transpose(1, 2) for x in leaves(*[(2, 9, 3, 16)] * 3))
    scale, epsilon = torch.tensor(0.4), torch.tensor(0.1)
    norms = key.square().sum(-1)
    for terms, keeps_weights in ((None, False), (norms, False), (norms, True)):
        operands, is_yat = (query, key, value, terms, scale, epsilon), terms is None
        torch.library.opcheck(attention._forward_operator, (*operands, True, is_yat, keeps_weights))
        _, kept = attention._forward(*operands, True, is_yat, keeps_weights)
        grad = torch.ones(2, 9, 3, 16).transpose(1, 2)
        torch.library.opcheck(attention._backward_operator, (*operands, kept, grad, True, is_yat))
