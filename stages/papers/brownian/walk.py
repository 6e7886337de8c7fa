"""Self-attention as a random walk on a sphere (sections 2.1-2.3, 3.1-3.2).

N tokens of width d; P [..., N, N] a transition matrix, row i the probabilities of going from token i to each other.
All functions are pure; leading dimensions (images, heads) are kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
    # One equation of πᵀ(I − P) = 0 is implied by the others; the sum takes its place.
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
    3.5.7); the probabilities of tokens are its density at each.
    """
    angles = torch.arange(tokens, dtype=torch.float64) * (2 * math.pi / tokens)
    # The plane of tokens whose mean is 0, in which `on_sphere` leaves them.
    plane = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    plane = plane / plane.norm(dim=1, keepdim=True)
    v = on_sphere(torch.stack([angles.cos(), angles.sin()], dim=1) @ plane)
    walk = torch.linalg.matrix_power(gaussian_transition(v, 1 / steps), steps)[0]
    turns = 2 * math.pi * torch.arange(-3, 4, dtype=torch.float64)
    variance = 1 / v.shape[1]
    wrapped = (-((angles[:, None] + turns) ** 2) / (2 * variance)).exp().sum(dim=1)
    return 0.5 * (walk - wrapped / wrapped.sum()).abs().sum().item()
