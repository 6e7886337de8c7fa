"""Self-attention as a random walk on a sphere (sections 2.1-2.3, 3.1-3.2).

N tokens of width d; P [..., N, N] a transition matrix, row i the probabilities of going from token i to each other.
All functions are pure; leading dimensions (images, heads) are kept.

Functions named `*_rows` measure the walk inside a trained network, in evaluation mode: one row per block, head or
depth, averaged over the images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stages.papers.brownian.vit import Block, ViT


def on_sphere(v: Tensor) -> Tensor:
    """Equation 11 with γ = 1, β = 0 and no ε: tokens on the sphere of radius √d.  [..., N, d] -> [..., N, d]."""
    centred = v - v.mean(dim=-1, keepdim=True)
    return centred / centred.square().mean(dim=-1, keepdim=True).sqrt()


def squared_distances(v: Tensor) -> Tensor:
    """‖v_i − v_j‖² computed from the differences, not from dot products.  [..., N, d] -> [..., N, N]."""
    return torch.cdist(v, v, compute_mode="donot_use_mm_for_euclid_dist").square()


def attention_transition(q: Tensor, k: Tensor) -> Tensor:
    """P = softmax(Q Kᵀ / √d) (equation 13).  q, k: [..., N, d]; returns [..., N, N]."""
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)


def gaussian_transition(v: Tensor, sigma_squared: float) -> Tensor:
    """The Gaussian kernel exp(−‖v_i − v_j‖² / 2σ²) (equation 1), its rows divided by their sums."""
    kernel = (-squared_distances(v) / (2 * sigma_squared)).exp()
    return kernel / kernel.sum(dim=-1, keepdim=True)


def stationary_distribution(transition: Tensor) -> Tensor:
    """π with πᵀP = πᵀ and Σπ = 1, for positive P.  [..., N, N] -> [..., N]."""
    n = transition.shape[-1]
    # One equation of πᵀ(I − P) = 0 is redundant; the sum replaces it.
    system = (torch.eye(n, dtype=transition.dtype, device=transition.device) - transition).transpose(-2, -1).clone()
    system[..., -1, :] = 1
    right = transition.new_zeros(n)
    right[-1] = 1
    return torch.linalg.solve(system, right.expand(transition.shape[:-1]))


def spectrum(transition: Tensor) -> Tensor:
    """Moduli of the eigenvalues, in descending order; the first is 1.  [..., N, N] -> [..., N]."""
    return torch.linalg.eigvals(transition).abs().sort(dim=-1, descending=True).values


def dobrushin(transition: Tensor) -> Tensor:
    """The largest total-variation distance between two rows: the share of a difference that one step can keep."""
    return 0.5 * torch.cdist(transition, transition, p=1).amax(dim=(-2, -1))


def distance_to_limit(transition: Tensor, powers: list[int]) -> Tensor:
    """Largest total-variation distance of a row of P^k to the stationary distribution.  Returns [..., len(powers)]."""
    limit = stationary_distribution(transition)[..., None, :]
    distances = [
        0.5 * (torch.linalg.matrix_power(transition, k) - limit).abs().sum(dim=-1).amax(dim=-1) for k in powers
    ]
    return torch.stack(distances, dim=-1)


def mean_squared_distance(v: Tensor) -> Tensor:
    """Mean over all ordered pairs of different tokens.  [..., N, d] -> [...]."""
    n = v.shape[-2]
    spread = (v - v.mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1))
    return 2 * spread / (n - 1)


def distance_to_brownian_motion(steps: int, tokens: int = 512) -> float:
    """Total variation between a walk of `steps` steps in time 1 and a Brownian motion, both from the same token.

    Tokens of width 3 fill their sphere, a circle of radius √3, evenly; the kernel has σ² = 1 / steps.  On a circle of
    radius R a Brownian motion's angle after a time t is normal with variance t / R², wrapped (Mardia and Jupp 2000,
    3.5.7); its density at each token gives the token's probability.
    """
    angles = torch.arange(tokens, dtype=torch.float64) * (2 * math.pi / tokens)
    # `on_sphere` leaves tokens in the plane of those with mean 0.
    plane = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    plane = plane / plane.norm(dim=1, keepdim=True)
    v = on_sphere(torch.stack([angles.cos(), angles.sin()], dim=1) @ plane)
    walk = torch.linalg.matrix_power(gaussian_transition(v, 1 / steps), steps)[0]
    turns = 2 * math.pi * torch.arange(-3, 4, dtype=torch.float64)
    variance = 1 / v.shape[1]
    wrapped = (-((angles[:, None] + turns) ** 2) / (2 * variance)).exp().sum(dim=1)
    return 0.5 * (walk - wrapped / wrapped.sum()).abs().sum().item()


def _walk_blocks(model: ViT, images: Tensor) -> Iterator[tuple[int, Block, Tensor]]:
    """Yield each block's index from 1, the block, and the tokens that enter it."""
    tokens = model.embed(images)
    for index, block in enumerate(model.blocks, start=1):
        assert isinstance(block, Block), "a ViT's blocks"
        yield index, block, tokens
        tokens = block(tokens)


def _transitions(block: Block, tokens: Tensor) -> Tensor:
    """Return P [B, H, N, N], with scores and softmax in float64, because rows must sum to 1 in high powers of P."""
    q, k, _ = block.attention.heads(block.attention_norm(tokens))
    return attention_transition(q.double(), k.double())


@torch.no_grad()
def head_rows(model: ViT, images: Tensor) -> list[dict[str, Any]]:
    """Describe each head's chain: row sums, self-probability, row entropy, spectrum, contraction, Gaussian distance.

    `gaussian_distance` is the mean total variation between P and the paper's Gaussian walk between the same tokens on
    the sphere, with σ² = √D.  It is 0 if Q = K = LN(X), from which trained projections depart.
    """
    rows = []
    for index, block, tokens in _walk_blocks(model, images):
        transitions = _transitions(block, tokens)
        points = on_sphere(tokens.double())
        gaussian = gaussian_transition(points, points.shape[-1] ** 0.5)[:, None]
        values = spectrum(transitions)
        columns = {
            "row_sum_error": (transitions.sum(dim=-1) - 1).abs().amax(dim=-1),
            "smallest_entry": transitions.amin(dim=(-2, -1)),
            "self_probability": transitions.diagonal(dim1=-2, dim2=-1).mean(dim=-1),
            "entropy": -torch.xlogy(transitions, transitions).sum(dim=-1).mean(dim=-1),
            "second_eigenvalue": values[..., 1],
            "spectral_gap": 1 - values[..., 1],
            "dobrushin": dobrushin(transitions),
            "gaussian_distance": 0.5 * (transitions - gaussian).abs().sum(dim=-1).mean(dim=-1),
        }
        for head in range(transitions.shape[1]):
            means = {name: column[:, head].mean().item() for name, column in columns.items()}
            rows.append({"block": index, "head": head + 1} | means)
    return rows


@torch.no_grad()
@torch.no_grad()
@torch.no_grad()
def depth_rows(model: ViT, images: Tensor) -> list[dict[str, Any]]:
    """Measure distances between tokens before the first block (depth 0) and after each: do they contract or spread?

    `on_sphere` is the mean squared distance after LayerNorm without affine, between 0 and 4 d; `share_of_sphere` is
    that over 2 d, the value of independent tokens; `step` is the block's mean squared update.  `norm_error` is how far
    the block's own LayerNorm, with affine and ε, leaves tokens from the sphere, relative to √d.
    """
    rows = []
    for index, block, tokens in _walk_blocks(model, images):
        normed = block.attention_norm(tokens).double()
        radius = normed.shape[-1] ** 0.5
        error = (normed.norm(dim=-1) / radius - 1).abs().mean().item()
        if index == 1:
            rows.append(_depth_row(0, tokens))
        after = block(tokens)
        moved = (after - tokens).square().sum(dim=-1).mean().item()
        rows.append(_depth_row(index, after) | {"step": moved, "norm_error": error})
    return rows


def _depth_row(depth: int, tokens: Tensor) -> dict[str, Any]:
    points = on_sphere(tokens.double())
    on_the_sphere = mean_squared_distance(points).mean().item()
    return {
        "depth": depth,
        "mean_squared_distance": mean_squared_distance(tokens.double()).mean().item(),
        "on_sphere": on_the_sphere,
        "share_of_sphere": on_the_sphere / (2 * points.shape[-1]),
    }


@torch.no_grad()
def motion_rows(model: ViT, images: Tensor) -> list[dict[str, Any]]:
    """Return, by block, the squared displacement of tokens by attention so far, over the sum of its squared steps.

    A Brownian motion's steps are independent with mean 0 (section 2.4), so the ratio stays 1; a drift raises it up to
    the number of blocks, and steps that cancel each other lower it.  The MLPs' updates don't count.
    """
    rows = []
    displacement, steps = torch.zeros((), device=images.device), 0.0
    for index, block, tokens in _walk_blocks(model, images):
        update = block.attention(block.attention_norm(tokens)).double()
        displacement = displacement + update
        steps += update.square().sum(dim=-1).mean().item()
        squared = displacement.square().sum(dim=-1).mean().item()
        rows.append({"block": index, "displacement_over_steps": squared / steps if steps else 1.0})
    return rows
