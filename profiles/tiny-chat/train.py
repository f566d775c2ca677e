"""Train the demo model from nothing and write it as GGUF.

Needs `torch`, `numpy` and `gguf`. Without waiting threads it bears a busy machine better:
`OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 python train.py --minutes 25 --out tiny-chat.gguf`
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from dialogues import Dialogues, word_counts
from network import Network, Shape, export
from tokenizer import Pair, Tokenizer, train_merges
from torch import Tensor

_HERE = Path(__file__).parent
_LENGTHS = (48, 80, 128, 192, 256, 320, 512, 1024)
_SHORT = 128  # the longest dialogue of the first fifth of the time
_WARM_UP = 20
_MUON_RATE, _ADAM_RATE = 0.02, 3e-3
_MOMENTUM, _DECAY = 0.95, 0.01
_REPORT_EVERY = 50


def orthogonal(gradient: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest matrix with equal singular values, by Newton-Schulz steps."""
    x: Tensor = gradient / (gradient.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if is_tall else x


class Muon:
    """Muon for matrices; a fused one (q, k and v; gate and up) is orthogonalised part by part."""

    def __init__(self, matrices: list[torch.nn.Parameter]) -> None:
        self._matrices = matrices
        self._momenta = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix against its gradient, and forget the gradient."""
        for matrix, momentum in zip(self._matrices, self._momenta, strict=True):
            assert matrix.grad is not None
            momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
            update = matrix.grad.lerp(momentum, _MOMENTUM)
            rows, columns = matrix.shape
            parts = _parts(rows, columns)
            update = torch.cat([orthogonal(part) for part in update.chunk(parts)])
            scale = max(1.0, rows / parts / columns) ** 0.5
            matrix.mul_(1 - rate * _DECAY).add_(update, alpha=-rate * scale)
            matrix.grad = None


def _parts(rows: int, columns: int) -> int:
    if rows <= columns or rows % columns:
        return 1
    return 3 if rows == 3 * columns else 2


class Batches:
    """Dialogues of like length, put together until a batch has enough tokens."""

    def __init__(self, tokenizer: Tokenizer, dialogues: Dialogues, tokens: int) -> None:
        self._tokenizer, self._dialogues, self._tokens = tokenizer, dialogues, tokens
        self._waiting: dict[int, list[tuple[list[int], list[float]]]] = {length: [] for length in _LENGTHS}

    def next(self, longest: int) -> tuple[Tensor, Tensor]:
        """Return the ids and the weights of a batch."""
        while True:
            ids, weights = self._tokenizer.encode_pieces(self._dialogues.draw())
            length = next((length for length in _LENGTHS if len(ids) <= length + 1), None)
            if length is None or length > longest:
                continue
            waiting = self._waiting[length]
            waiting.append((ids, weights))
            if len(waiting) >= self._tokens // length:
                self._waiting[length] = []
                return _padded([ids for ids, _ in waiting]).long(), _padded([weights for _, weights in waiting])


def _padded(rows: list[list[int]] | list[list[float]]) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.float)


def loss_of(network: Network, ids: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Return the weighted loss and how many of the weighted tokens come first."""
    targets, weights = ids[:, 1:], weights[:, 1:]
    chosen = weights > 0
    scores = network.logits(network(ids[:, :-1])[chosen]).float()
    losses = F.cross_entropy(scores, targets[chosen], reduction="none")
    hits = (scores.argmax(-1) == targets[chosen]).float().mean().item()
    return (losses * weights[chosen]).sum() / weights[chosen].sum(), hits


def fractions(minutes: float, steps: int) -> Iterator[float]:
    """Return how much of the training is over, step by step, until it is."""
    began, step = time.monotonic(), 0
    while True:
        done = step / steps if steps else (time.monotonic() - began) / (60 * minutes)
        if done >= 1:
            return
        yield done
        step += 1


def train(network: Network, batches: Batches, minutes: float, steps: int) -> None:
    """Train until the time is over."""
    named = list(network.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "emb" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "emb" in name]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=_ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    seen, loss_mean, hits_mean = 0, None, 0.0
    for step, done in enumerate(fractions(minutes, steps)):
        rate = min(1.0, (step + 1) / _WARM_UP) * min(1.0, max(0.01, (1 - done) / 0.7))
        ids, weights = batches.next(_SHORT if done < 0.2 else _LENGTHS[-1])
        loss, hits = loss_of(network, ids, weights)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for group in adam.param_groups:
            group["lr"] = _ADAM_RATE * rate
        adam.step()
        muon.step(_MUON_RATE * rate)
        seen += ids.numel()
        loss_mean = loss.item() if loss_mean is None else 0.95 * loss_mean + 0.05 * loss.item()
        hits_mean = hits if step == 0 else 0.95 * hits_mean + 0.05 * hits
        if step % _REPORT_EVERY == 0:
            print(f"{step} {done:.1%} loss {loss_mean:.4f} right {hits_mean:.4f} tokens {seen / 1e6:.2f}M", flush=True)


def merges_of(path: Path) -> list[Pair]:
    """Read the tokenizer's merges, or learn and keep them when there are none."""
    if not path.exists():
        path.write_text(json.dumps(train_merges(word_counts())) + "\n", encoding="utf-8")
    return [(first, second) for first, second in json.loads(path.read_text(encoding="utf-8"))]


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Train the demo model and write it as GGUF.")
    parser.add_argument("--minutes", type=float, default=25, help="how long to train (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=0, help="train so many steps, whatever the time")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=3072, help="tokens of a batch (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the weights and the dialogues (default: %(default)s)")
    parser.add_argument("--merges", type=Path, default=_HERE / "merges.json", help="learnt anew when it is missing")
    parser.add_argument("--out", type=Path, default=Path("tiny-chat.gguf"), help="the file (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer(merges_of(options.merges))
    network = Network(Shape(vocabulary=len(tokenizer.tokens)))
    train(network, Batches(tokenizer, Dialogues(options.seed), options.tokens), options.minutes, options.steps)
    template = (_HERE / "template.jinja").read_text(encoding="utf-8").rstrip("\n")
    export(options.out, network, tokenizer, template)
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
