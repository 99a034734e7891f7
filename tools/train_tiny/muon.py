"""Muon in float32: momentum whose matrices are made orthogonal by Newton-Schulz steps."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """[K, m, n] to matrices of the same row and column spaces with singular values near 1."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonal updates scaled to the size of AdamW's, decoupled decay.

    Ranks share the work: each makes a part of the updates, all apply all of them.
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.rank, self.ranks = rank, ranks

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            updates = self._updates([self._momentum(p, group) for p in parameters])
            for parameter, update in zip(parameters, updates, strict=True):
                scale = group["lr"] * 0.2 * max(parameter.shape) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-scale)

    def _momentum(self, parameter: Tensor, group: dict) -> Tensor:
        state = self.state[parameter]
        buffer = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - group["momentum"])
        return parameter.grad.lerp(buffer, group["momentum"])

    def _updates(self, momenta: list[Tensor]) -> list[Tensor]:
        """Orthogonal updates; this rank's matrices of one shape are handled together."""
        flat = torch.zeros(sum(m.numel() for m in momenta))
        pieces = flat.split([m.numel() for m in momenta])
        by_shape: dict[torch.Size, list[int]] = {}
        for index, matrix in enumerate(momenta):
            by_shape.setdefault(matrix.shape, []).append(index)
        for indices in by_shape.values():
            mine = indices[self.rank :: self.ranks]
            if mine:
                made = orthogonalise(torch.stack([momenta[i] for i in mine]))
                for i, update in zip(mine, made, strict=True):
                    pieces[i].copy_(update.flatten())
        if self.ranks > 1:
            dist.all_reduce(flat)
        return [p.view_as(m) for p, m in zip(pieces, momenta, strict=True)]
