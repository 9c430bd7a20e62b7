#!/usr/bin/env python3
"""Trains a small transformer on sequences that are distributed over several processes, and compares its losses with
those of one process.

    python examples/ring_training.py [--ranks 4] [--sharding striped] [--device cuda]

The model has no ring code. It calls torch's scaled_dot_product_attention. Within attend.ring.context_parallel each
process has its part of the tokens, positions and labels. The gradients of the weights are summed over the processes.
The exit status is 0 if the losses agree, 1 if they differ, and 2 if the usage was wrong or torch is missing.
"""

import argparse
import os
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    # An optimizer imports this module later, and the module's functions store the default group that exists when it is
    # imported. It is therefore imported here, before a group exists. Otherwise the group's threads would outlive
    # destroy_process_group, and a thread that frees a tensor while Python exits would abort the process.
    import torch.distributed.nn  # isort: skip
    from torch import nn
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install torch", file=sys.stderr)
    sys.exit(2)

from attend.ring import context_parallel

VOCABULARY, WIDTH, HEADS = 64, 64, 4
TOLERANCE = 5e-4  # largest allowed difference of the losses at any step, in nats, due to rounding


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(o.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, seq_len):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(seq_len, WIDTH)
        self.layers = nn.Sequential(Layer(), Layer())
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, positions):
        return self.out(self.layers(self.tokens(tokens) + self.positions(positions)))


def train(args, device, is_ring):
    """Returns the mean loss of each step."""
    torch.manual_seed(0)
    model = Model(args.seq_len).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(args.steps):
        random = torch.Generator().manual_seed(step)
        # The second half of every sequence repeats the first half, which attention can learn.
        half = torch.randint(VOCABULARY, (2, args.seq_len // 2 + 1), generator=random)
        text = torch.cat([half, half], 1)[:, : args.seq_len + 1].to(device)
        tokens, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        positions = torch.arange(args.seq_len, device=device)
        count = labels.numel()
        optimizer.zero_grad()

        def forward_and_backward():
            logits = model(tokens, positions)  # noqa: B023 (called in the same iteration)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count  # noqa: B023
            loss.backward()
            return loss.detach()

        if is_ring:
            tensors = [tokens, labels, positions]
            with context_parallel(sharding=args.sharding, buffers=tensors, buffer_seq_dims=[1, 1, 0]):
                loss = forward_and_backward()
            for x in (loss, *(p.grad for p in model.parameters() if p.grad is not None)):
                dist.all_reduce(x)
        else:
            loss = forward_and_backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def are_alike(ring, one):
    """Prints the largest difference of the losses. Returns whether it is within TOLERANCE."""
    difference = max(abs(a - b) for a, b in zip(ring, one))
    is_right = all(abs(a - b) <= TOLERANCE for a, b in zip(ring, one))  # False for NaN
    verdict = "ok" if is_right else "FAILED"
    print(f"loss {ring[0]:.4f} to {ring[-1]:.4f}")
    print(f"largest difference from one process {difference:.1e}, allowed {TOLERANCE:.1e}  {verdict}")
    return is_right


def rank_main(rank, args, folder):
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(folder, "store"), args.ranks)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", store=store, rank=rank, world_size=args.ranks)
    ring = train(args, device, is_ring=True)
    if rank == 0:
        is_right = are_alike(ring, train(args, device, is_ring=False))
        with open(os.path.join(folder, "verdict"), "w") as file:
            file.write(str(is_right))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=2, help="number of processes, each with one GPU on --device cuda (default: 2)"
    )
    parser.add_argument("--sharding", default="zigzag", choices=["zigzag", "contiguous", "striped"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq_len", type=int, default=128)
    args = parser.parse_args()
    if args.device == "cuda" and torch.cuda.device_count() < args.ranks:
        parser.error(f"--ranks: {args.ranks}, allowed at most {torch.cuda.device_count()}, the GPUs of this machine")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (args, folder), nprocs=args.ranks)
        with open(os.path.join(folder, "verdict")) as file:
            return 0 if file.read() == "True" else 1


if __name__ == "__main__":
    sys.exit(main())
