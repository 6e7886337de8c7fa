"""Equations 3, 4, 5 and 7 of the DAC paper as loops over plain numbers in float64, without our code or PyTorch.

Inputs are `<case>/x`, `weight`, `bias` and `upstream`; `<case>/output`, `grad_x`, `grad_weight` and `grad_bias` are the
output and the gradients of sum(output · upstream).
"""

from itertools import product

import numpy as np

# name: (images, inputs, outputs, height, width, kernel, stride, padding, one bias per weight)
CONVOLUTIONS = {
    "plain": (2, 3, 2, 5, 6, (3, 3), (1, 1), (1, 1), False),
    "strided": (1, 2, 3, 6, 7, (3, 3), (2, 2), (1, 1), False),
    "uneven": (1, 2, 2, 7, 5, (2, 3), (3, 2), (0, 2), False),
    "sparse": (1, 2, 2, 5, 5, (1, 1), (2, 2), (0, 0), False),
    "unshared": (1, 2, 2, 4, 5, (3, 3), (1, 1), (1, 1), True),
    "unshared_strided": (1, 2, 2, 5, 6, (3, 2), (2, 2), (1, 0), True),
}


def dense(x: np.ndarray, w: np.ndarray, b: np.ndarray, upstream: np.ndarray) -> dict[str, np.ndarray]:
    """Equation 4 and its gradients, equation 7."""
    out, dx, dw, db = np.zeros((len(x), len(w))), np.zeros_like(x), np.zeros_like(w), np.zeros_like(b)
    for s, i, j in product(range(len(x)), *map(range, w.shape)):
        sum_ij = b[i, j] + x[s, j]
        if sum_ij > 0:
            out[s, i] += w[i, j] * sum_ij
            dw[i, j] += sum_ij * upstream[s, i]
            db[i, j] += w[i, j] * upstream[s, i]
            dx[s, j] += w[i, j] * upstream[s, i]
    return {"output": out, "grad_x": dx, "grad_weight": dw, "grad_bias": db}


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray,
    upstream: np.ndarray,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Equation 5; positions outside the image add nothing."""
    out, dx, dw, db = np.zeros_like(upstream), np.zeros_like(x), np.zeros_like(w), np.zeros_like(b)
    for s, i, h, k in product(*map(range, upstream.shape)):
        for j, a, c in product(*map(range, w.shape[1:])):
            row, column = h * stride[0] + a - padding[0], k * stride[1] + c - padding[1]
            if not (0 <= row < x.shape[2] and 0 <= column < x.shape[3]):
                continue
            place = (i, j) if b.ndim == 2 else (i, j, a, c)
            pre = b[place] + x[s, j, row, column]
            if pre > 0:
                out[s, i, h, k] += w[i, j, a, c] * pre
                dw[i, j, a, c] += pre * upstream[s, i, h, k]
                db[place] += w[i, j, a, c] * upstream[s, i, h, k]
                dx[s, j, row, column] += w[i, j, a, c] * upstream[s, i, h, k]
    return {"output": out, "grad_x": dx, "grad_weight": dw, "grad_bias": db}


def multi_bias(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """Equation 3.  w: [n, m, K]; b: [m, K]."""
    out = np.zeros((len(x), len(w)))
    for s, i, j, k in product(range(len(x)), *map(range, w.shape)):
        out[s, i] += w[i, j, k] * max(0.0, b[j, k] + x[s, j])
    return {"output": out}


def make_vectors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    vectors: dict[str, np.ndarray] = {}

    def store(case: str, **arrays: np.ndarray) -> None:
        vectors.update({f"{case}/{name}": array for name, array in arrays.items()})

    x, w, b, up = draw(size=(5, 4)), draw(size=(3, 4)), draw(size=(3, 4)), draw(size=(5, 3))
    store("dense", x=x, weight=w, bias=b, upstream=up, **dense(x, w, b, up))
    x, w, b = draw(size=(5, 4)), draw(size=(3, 4, 2)), draw(size=(4, 2))
    store("mba", x=x, weight=w, bias=b, **multi_bias(x, w, b))
    for case, (images, m, n, height, width, kernel, stride, padding, unshared) in CONVOLUTIONS.items():
        x, w = draw(size=(images, m, height, width)), draw(size=(n, m, *kernel))
        b = draw(size=w.shape if unshared else (n, m))
        size = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip((height, width), padding, kernel, stride, strict=True)]
        up = draw(size=(images, n, *size))
        store(case, x=x, weight=w, bias=b, upstream=up, stride=np.array(stride), padding=np.array(padding))
        store(case, **convolution(x, w, b, up, stride, padding))
    return vectors
