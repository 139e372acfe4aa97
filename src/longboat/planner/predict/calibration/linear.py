"""Solving a small symmetric positive system of equations."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("solve_positive",)


def solve_positive(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x of ``matrix x = right``, by Cholesky's decomposition, for symmetric positive definite matrices."""
    size = len(right)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = rest**0.5 if i == j else rest / lower[j][j]
    middle = [0.0] * size
    for i in range(size):
        middle[i] = (right[i] - sum(lower[i][k] * middle[k] for k in range(i))) / lower[i][i]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (middle[i] - sum(lower[k][i] * found[k] for k in range(i + 1, size))) / lower[i][i]
    return found
