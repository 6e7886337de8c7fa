"""Common tests of CG-FAC and K-FAC: correctness, convergence, exact resuming, and an effect of every keyword."""

import io
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.optim.cg_fac import CGFAC
from stages.optim.kfac import KFAC
from stages.optim.preconditioned import PreconditionedOptimizer
from tests.optim.layers import TokenNetwork

Make = Callable[..., PreconditionedOptimizer]

OPTIMIZERS: dict[str, Make] = {
    "cg-fac": CGFAC,
    "cg-fac-per-sample": partial(CGFAC, reading="per-sample"),
    "cg-fac-warm": partial(CGFAC, warm_start=True, cg_iterations=2),
    "cg-fac-factors": partial(CGFAC, factor_decay=0.9, update_interval=3),
    "kfac": partial(KFAC, update_interval=3),
}


@pytest.fixture(params=list(OPTIMIZERS))
def make(request: pytest.FixtureRequest) -> Make:
    return partial(OPTIMIZERS[request.param], layers=("mix",))


def network() -> TokenNetwork:
    torch.manual_seed(0)
    return TokenNetwork()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Train with a separate batch per step as in the training loop; return the losses."""
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randn(16, 4, 3, generator=generator)
        loss = F.cross_entropy(model(tokens), tokens.mean(dim=1).argmax(dim=1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def after(make: Make, steps: int = 4, **keywords: object) -> list[Tensor]:
    """Return the weights after some steps."""
    model = network()
    train(model, make(model, **{"lr": 0.05} | keywords), range(steps))
    return weights(model)


def equal(ours: list[Tensor], theirs: list[Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)]


def test_equals_torch_sgd_if_damping_dominates(make: Make) -> None:
    model, damping = network(), 1e5
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, theirs, range(5))
    # The direction is the gradient divided by γ, which lr compensates.
    ours = after(make, 5, lr=0.1 * damping, damping=damping, momentum=0.9, rest_lr=0.1)
    for parameter, expected in zip(ours, weights(model), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rest", ["sgd", "adam"])
def test_other_parameters_follow_torchs_optimiser(make: Make, rest: str) -> None:
    model, twin = network(), network()
    kind = {"sgd": partial(torch.optim.SGD, momentum=0.5), "adam": partial(torch.optim.Adam, betas=(0.8, 0.9))}[rest]
    theirs = kind(twin.head.parameters(), lr=0.02, weight_decay=0.1)
    ours = make(model, lr=0.1, momentum=0.5, betas=(0.8, 0.9), weight_decay=0.1, rest=rest, rest_lr=0.02)
    for step in range(4):
        twin.mix.load_state_dict(model.mix.state_dict())
        train(twin, theirs, range(step, step + 1))
        train(model, ours, range(step, step + 1))
    for parameter, expected in zip(model.head.parameters(), twin.head.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-7)


def test_converges_on_a_toy(make: Make) -> None:
    model = network()
    optimizer = make(model, lr=0.1, damping=0.01, rest="adam", rest_lr=0.02)
    losses = [train(model, optimizer, range(1))[0] for _ in range(250)]
    assert losses[-1] < 0.25 < 1.0 < losses[0]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_resumed_training_is_bitwise_identical(make: Make, cut: int) -> None:
    keywords = {"lr": 0.05, "momentum": 0.9, "rest": "adam", "rest_lr": 0.01, "kl_clip": 0.01}
    straight = network()
    train(straight, make(straight, **keywords), range(8))
    first = network()
    optimizer = make(first, **keywords)
    train(first, optimizer, range(cut))
    buffer = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    train(first, optimizer, range(cut, cut + 2))  # continuing must not change the saved state
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    second = TokenNetwork()
    resumed = make(second, **keywords)
    second.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    train(second, resumed, range(cut, 8))
    assert all(equal(weights(second), weights(straight)))


def test_loaded_state_is_a_copy(make: Make) -> None:
    model = network()
    optimizer = make(model, lr=0.05)
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    tensors = {name: tensor.clone() for name, tensor in saved["layers"]["mix"].items()}
    other = make(model, lr=0.05)
    other.load_state_dict(saved)
    train(model, other, range(2, 8))
    assert all(torch.equal(saved["layers"]["mix"][name], tensor) for name, tensor in tensors.items())


def test_state_of_other_layers_is_refused() -> None:
    mix, head = network(), network()
    saved = CGFAC(mix, lr=0.1, layers=("mix",)).state_dict()
    with pytest.raises(ValueError, match="saved for layers mix, not head"):
        CGFAC(head, lr=0.1, layers=("head",)).load_state_dict(saved)


def test_lr_of_every_group_follows_the_loop(make: Make) -> None:
    model = network()
    optimizer = make(model, lr=0.05, rest_lr=0.01)
    before = weights(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, range(2))
    assert all(equal(weights(model), before))
    optimizer.load_state_dict(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    train(model, optimizer, range(2))
    assert not any(equal(weights(model), before))


def test_rest_lr_keeps_its_ratio_under_a_schedule(make: Make) -> None:
    halved, direct = network(), network()
    optimizer = make(halved, lr=0.1, rest_lr=0.02)
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    train(halved, optimizer, range(3))
    train(direct, make(direct, lr=0.05, rest_lr=0.01), range(3))
    for ours, theirs in zip(weights(halved), weights(direct), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        {"momentum": 0.5},
        {"weight_decay": 0.1},
        {"damping": 0.1},
        {"kl_clip": 1e-7},
        {"lr": 0.02},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_shared_keyword_changes_the_named_layer(make: Make, change: dict[str, object]) -> None:
    assert equal(after(make), after(make, **change))[:2] == [False, False]


def test_rest_keywords_change_the_rest(make: Make) -> None:
    for change in ({"rest": "adam"}, {"rest_lr": 0.5}):
        assert equal(after(make, 1), after(make, 1, **change)) == [True, True, False, False]
    first, second = ({"rest": "adam", "betas": betas} for betas in ((0.9, 0.999), (0.5, 0.999)))
    assert equal(after(make, 3, **first), after(make, 3, **second))[2:] == [False, False]


def test_clipped_step_has_the_divergence_of_equation_16() -> None:
    """½ Δᵀ (F + γ I) Δ of the actual step, with an explicit F."""
    model, limit = network().double(), 1e-6
    optimizer = KFAC(model, lr=1.0, damping=0.01, factor_decay=0.0, kl_clip=limit, layers=("mix",), rest_lr=1e-9)
    before = torch.cat([model.mix.weight, model.mix.bias[:, None]], dim=1).detach()
    tokens = torch.randn(16, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(tokens), tokens.mean(dim=1).argmax(dim=1)).backward()
    optimizer.step()
    step = (torch.cat([model.mix.weight, model.mix.bias[:, None]], dim=1) - before).flatten()
    state = optimizer.layer_state["mix"]
    fisher = torch.kron(state["gradient_factor"], state["input_factor"]) + 0.01 * torch.eye(8, dtype=torch.float64)
    assert (0.5 * step @ fisher @ step).item() == pytest.approx(limit, rel=1e-6)


def test_curvature_is_updated_at_its_interval() -> None:
    for kind in (KFAC, partial(CGFAC, factor_decay=0.5)):
        model = network()
        optimizer = kind(model, lr=0.01, update_interval=3, layers=("mix",))
        factors = []
        for step in range(7):
            train(model, optimizer, range(step, step + 1))
            factors.append(optimizer.layer_state["mix"]["input_factor"].clone())
        changed = [not torch.equal(old, new) for old, new in pairwise(factors)]
        assert changed == [False, False, True, False, False, True]


def test_non_finite_gradients_reach_the_weights_for_the_loop_to_detect(make: Make) -> None:
    model = network()
    optimizer = make(model, lr=0.05)
    (model(torch.randn(4, 4, 3)).sum() * math.nan).backward()
    optimizer.step()
    assert model.mix.weight.isnan().all()


def test_missing_pass_is_an_error(make: Make) -> None:
    model = network()
    optimizer = make(model, lr=0.05)
    model.mix.weight.grad, model.mix.bias.grad = torch.ones(2, 3), torch.ones(2)
    with pytest.raises(RuntimeError, match="mix has a gradient, but no pass was captured"):
        optimizer.step()


@pytest.mark.slow(hours=True)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler inspects the hooks' arguments
def test_compiling_after_creating_the_optimiser_changes_nothing(make: Make) -> None:
    plain, compiled = network(), network()
    for model, compile_ in ((plain, False), (compiled, True)):
        optimizer = make(model, lr=0.05)
        train(torch.compile(model, backend="aot_eager") if compile_ else model, optimizer, range(5))
    for ours, theirs in zip(weights(compiled), weights(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_half_precision_pass_gives_nearly_the_same_step(make: Make) -> None:
    moved = []
    for half in (False, True):
        model = network()
        before = weights(model)
        optimizer = make(model, lr=0.05, damping=0.1)
        tokens = torch.randn(16, 4, 3, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(tokens)
        F.cross_entropy(logits.float(), tokens.mean(dim=1).argmax(dim=1)).backward()
        optimizer.step()
        moved.append(torch.cat([(a - b).flatten() for a, b in zip(weights(model), before, strict=True)]))
    assert 0 < ((moved[1] - moved[0]).norm() / moved[0].norm()).item() < 0.05


def test_evaluation_between_backward_and_step_changes_nothing(make: Make) -> None:
    straight, observed = network(), network()
    for model, observe in ((straight, False), (observed, True)):
        optimizer = make(model, lr=0.05)
        for step in range(3):
            if observe:
                with torch.inference_mode():
                    model(torch.randn(50, 4, 3))
            train(model, optimizer, range(step, step + 1))
    assert all(equal(weights(straight), weights(observed)))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0; expected more than 0"),
        ({"damping": 0.0}, "damping is 0.0; expected more than 0"),
        ({"update_interval": 0}, "update_interval is 0; expected more than 0"),
        ({"kl_clip": -1.0}, "kl_clip is -1.0; expected more than 0"),
        ({"rest": "adamw"}, "rest is 'adamw'; known: adam, sgd"),
        ({"factor_decay": 1.0}, "factor_decay is 1.0; expected"),
        ({"reading": "both"}, "reading is 'both'; known: kronecker, per-sample"),
        ({"cg_iterations": 0}, "cg_iterations is 0; expected at least 1"),
        ({"cg_tolerance": 1.0}, "cg_tolerance is 1.0; expected 0 or more and less than 1"),
        ({"update_interval": 10, "factor_decay": None}, "update_interval needs factor_decay"),
        ({"reading": "per-sample"}, "factor_decay is 0.5; expected .* reading kronecker"),
    ],
)
def test_invalid_values_are_refused(keywords: dict[str, object], message: str) -> None:
    arguments = {"lr": 0.1, "layers": ("mix",)} | keywords
    with pytest.raises(ValueError, match=message):
        CGFAC(network(), **{"factor_decay": 0.5} | arguments)
    is_shared = keywords.keys() <= {"lr", "damping", "update_interval", "kl_clip", "rest", "factor_decay"}
    if is_shared and None not in keywords.values():
        with pytest.raises(ValueError, match=message):
            KFAC(network(), **arguments)
