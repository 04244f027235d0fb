r"""
Sharpness of a neural network at the edge of stability
======================================================

While a network is trained by gradient descent, the largest eigenvalue of its Hessian grows
up to the limit of stability, and stays there.

Gradient descent with step :math:`\eta` diverges along directions in which the second
derivative of the loss exceeds :math:`2/\eta`. Training nevertheless moves to this edge of
stability [1]_. The Hessian of a network is too large to be stored, but its products with
vectors are derivatives of the gradient.
"""

import importlib.util

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh

# %%
# A small network with two hidden layers of hyperbolic tangents, and the gradient of its
# loss by back-propagation.

rng = np.random.default_rng(0)
inputs = np.c_[np.linspace(-1, 1, 40), np.ones(40)]
targets = np.sin(6 * inputs[:, :1])
shapes = [(2, 20), (20, 20), (20, 1)]
sizes = [a * b for a, b in shapes]
cuts = np.cumsum(sizes)[:-1]


def gradient(p):
    layers = [part.reshape(s) for part, s in zip(np.split(p, cuts), shapes, strict=True)]
    values = [inputs]
    for W in layers[:-1]:
        values.append(np.tanh(values[-1] @ W))
    error = (values[-1] @ layers[-1] - targets) / len(targets)
    derivatives = []
    for W, value in zip(layers[::-1], values[::-1], strict=True):
        derivatives.append((value.T @ error).ravel())
        error = (error @ W.T) * (1 - value**2)
    return np.concatenate(derivatives[::-1])


# %%
# The derivative of the gradient along a vector, exact to rounding: the imaginary part of
# the gradient at a complex point a tiny step away.


def hessian(p):
    step = 1e-30
    return lambda V: np.stack(
        [gradient(p + 1j * step * v).imag / step for v in V.T], axis=1
    )


# %%
# Train, and compute the two largest eigenvalues every 100 steps. The vectors of the last
# solve start the next.

rate, steps = 0.2, 4000
p = np.concatenate([rng.normal(size=shape).ravel() / np.sqrt(shape[0]) for shape in shapes])
X, sharpness = None, []
options = {"shape": (p.size, p.size), "which": "LA", "tol": 1e-4, "rng": 0}
for step in range(1, steps + 1):
    p = p - rate * gradient(p)
    if step % 100 == 0:
        w, X = eigsh(hessian(p), k=2, v0=X, **options)
        sharpness.append(w)

# %%
# The eigenvalue rises until gradient descent becomes unstable along its eigenvector, and
# then stays close to 2 / step.

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
lines = ax.plot(np.arange(100, steps + 1, 100), np.array(sharpness)[:, ::-1])
limit = ax.axhline(2 / rate, color="black", linestyle="--")
ax.set(xlabel="steps of gradient descent", ylabel="eigenvalue of the Hessian")
ax.legend([*lines, limit], ["largest eigenvalue", "second eigenvalue", "2 / step"])
plt.show()

# %%
# Libraries that differentiate need no gradient by hand. In PyTorch, the function for the
# last state is

if importlib.util.find_spec("torch"):
    import torch

    def loss(p):
        values = torch.from_numpy(inputs)
        *hidden, last = (w.reshape(s) for w, s in zip(p.split(sizes), shapes, strict=True))
        for W in hidden:
            values = torch.tanh(values @ W)
        return ((values @ last - torch.from_numpy(targets)) ** 2).mean() / 2

    _, product = torch.func.vjp(torch.func.grad(loss), torch.from_numpy(p))

    def torch_hessian(V):
        (products,) = torch.func.vmap(product, in_dims=1, out_dims=1)(torch.from_numpy(V))
        return products.numpy()

    w_torch = eigsh(torch_hessian, k=2, v0=X, **options)[0]
    print(w_torch - w)

# %%
# .. [1] J. Cohen et al., International Conference on Learning Representations (2021).
