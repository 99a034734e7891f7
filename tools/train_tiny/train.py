"""Training: first the vision tower on what each patch shows, then everything on answers.

    python -m tools.train_tiny.train --run build/train_tiny

Resumable (`--resume`), seeded; a step's data depends on the seed and the step alone. The work of a
step is shared by `--ranks` single-threaded processes, which average their gradients.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset

from tools.train_tiny import tokenizer as tokenizer_module
from tools.train_tiny.batch import Batch
from tools.train_tiny.data import make_batch, make_pictures
from tools.train_tiny.export import write_all, write_weights
from tools.train_tiny.model import TinyVlm
from tools.train_tiny.muon import Muon

WARMUP = 40
DECAY = 0.5
AUX_WEIGHT = 0.2


class Steps(Dataset):
    """Item i is a rank's part of step i: pictures in the first stage, packed rows in the second."""

    def __init__(
        self, tokenizer: Tokenizer, args: argparse.Namespace, start: int, rank: int
    ) -> None:
        self.tokenizer, self.args, self.start, self.rank = tokenizer, args, start, rank

    def __len__(self) -> int:
        return self.args.picture_steps + self.args.steps - self.start

    def __getitem__(self, index: int) -> Batch:
        args, step = self.args, self.start + index
        if step < args.picture_steps:
            return make_pictures(args.seed, step, self._part(args.pictures))
        return make_batch(self.tokenizer, args.seed, step, self._part(args.rows))

    def _part(self, total: int) -> range:
        share = total // self.args.ranks
        return range(self.rank * share, (self.rank + 1) * share)


def make_optimizers(
    model: TinyVlm, args: argparse.Namespace, rank: int
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else."""
    inner, rest = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and (".layers." in name or "proj." in name)
        (inner if matrix else rest).append(parameter)
    return [
        Muon(inner, lr=args.lr, rank=rank, ranks=args.ranks),
        torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def rate(step: int, args: argparse.Namespace) -> float:
    """Share of the peak learning rate: each stage warms up, the second one decays to zero."""
    if step < args.picture_steps:
        return min(1.0, (step + 1) / WARMUP)
    done = step - args.picture_steps
    return min(1.0, (done + 1) / WARMUP, (args.steps - done) / (DECAY * args.steps))


def save_checkpoint(
    path: Path, model: TinyVlm, optimizers: list[torch.optim.Optimizer], step: int
) -> None:
    """Everything that `--resume` needs, replaced at once."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    scratch = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "step": step, "optimizers": states}, scratch)
    scratch.replace(path)


def load_checkpoint(path: Path, model: TinyVlm, optimizers: list[torch.optim.Optimizer]) -> int:
    """The number of steps done."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["step"]


def average_gradients(model: TinyVlm, ranks: int) -> None:
    """Mean over the ranks, in one exchange."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= ranks
    pieces = flat.split([g.numel() for g in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


def train_step(
    model: TinyVlm,
    optimizers: list[torch.optim.Optimizer],
    batch: Batch,
    args: argparse.Namespace,
    step: int,
) -> dict[str, float]:
    """One update; this rank's losses as numbers."""
    with_text = step >= args.picture_steps
    losses = model.losses(batch, with_text)
    patches = losses["kinds"] + 0.5 * losses["colours"] + 0.5 * losses["centres"]
    loss = losses["text"] + AUX_WEIGHT * patches if with_text else patches
    loss.backward()
    if args.ranks > 1:
        average_gradients(model, args.ranks)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(step, args)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {name: float(value.detach()) for name, value in losses.items()}


def run(rank: int, args: argparse.Namespace) -> None:
    """The whole training, as seen by one rank."""
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.ranks > 1:
        meeting = (args.run / "meeting").resolve().as_uri()
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=args.ranks)
    tokenizer = Tokenizer.from_file(str(args.run / "tokenizer.json"))
    model = TinyVlm()
    optimizers = make_optimizers(model, args, rank)
    start = 0
    if args.resume and (args.run / "checkpoint.pt").exists():
        start = load_checkpoint(args.run / "checkpoint.pt", model, optimizers)
    elif args.init:
        model.load_state_dict(torch.load(args.init, weights_only=True)["model"])
    if args.export and rank == 0:
        write_all(model, tokenizer, args.export)
    steps = Steps(tokenizer, args, start, rank)
    loader = DataLoader(steps, batch_size=None, num_workers=1, prefetch_factor=4)
    loop(model, optimizers, loader, args, start, rank)


def loop(
    model: TinyVlm,
    optimizers: list[torch.optim.Optimizer],
    loader: DataLoader,
    args: argparse.Namespace,
    start: int,
    rank: int,
) -> None:
    """Steps with logging, checkpoints and early exports."""
    began, total = time.time(), args.picture_steps + args.steps
    sums: dict[str, list[float]] = {}
    for done, batch in enumerate(loader, start + 1):
        for name, value in train_step(model, optimizers, batch, args, done - 1).items():
            sums.setdefault(name, []).append(value)
        if rank:
            continue
        if done % args.log_every == 0 or done == total:
            means = "  ".join(f"{k} {sum(v) / len(v):.4f}" for k, v in sums.items())
            print(f"step {done}/{total}  {means}  {time.time() - began:.0f} s", flush=True)
            sums = {}
        if done % args.save_every == 0 or done == total:
            save_checkpoint(args.run / "checkpoint.pt", model, optimizers, done)
            if args.export:
                write_weights(model, args.export)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--export", type=Path, help="model directory to refresh meanwhile")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--init", type=Path, help="checkpoint whose weights to begin with")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--picture-steps", type=int, default=500, help="steps of the first stage")
    parser.add_argument("--pictures", type=int, default=64, help="pictures per step there")
    parser.add_argument("--steps", type=int, default=1300, help="steps of the second stage")
    parser.add_argument("--rows", type=int, default=32, help="packed rows per step there")
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    (args.run / "meeting").unlink(missing_ok=True)
    tokenizer_module.train().save(str(args.run / "tokenizer.json"))
    if args.ranks == 1:
        run(0, args)
    else:
        mp.spawn(run, (args,), args.ranks)


if __name__ == "__main__":
    main()
