"""Two small models in pure torch, similar to Llama and gpt-oss, and their results without a cache.

Model.logits(tokens, attention) computes the logits with a given attention function. attention(layer, q, k, v) gets rows
(tokens, heads, head_dim) before the rotation. This module computes the attention of one full sequence by matrix
products and softmax, in any dtype. In float64 the result is the reference; the result in another dtype gives the error
of that dtype.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Optional

import torch

MAX_POSITIONS = 128
SEED = 11  # fixed, because the differences between logits depend on these weights


@dataclass(frozen=True)
class Config:
    name: str
    heads_q: int
    heads_k: int
    head_dim: int
    windows: tuple[Optional[int], ...]  # for each layer, number of keys that a row sees, or None for all
    has_sinks: bool = False
    has_biases: bool = False
    width: int = 64
    inner: int = 96
    vocabulary: int = 199
    theta: float = 500.0


LLAMA = Config("llama", heads_q=4, heads_k=2, head_dim=32, windows=(None, None, None))
GPT_OSS = Config(
    "gpt_oss", heads_q=8, heads_k=2, head_dim=64, windows=(8, None, 8, None), has_sinks=True, has_biases=True
)  # fmt: skip
CONFIGS = (LLAMA, GPT_OSS)


def rms_norm(x, weight):
    wide = x.float() if x.dtype == torch.bfloat16 else x
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


class Model:
    """A model for `config`. Its weights are rounded to the dtype `rounded_to`, then stored in `dtype`."""

    def __init__(self, config, dtype, device="cpu", rounded_to=torch.float32):
        self.config, self.dtype, self.device = config, dtype, device
        generator = torch.Generator().manual_seed(SEED)

        def normal(*shape, size=1.0):
            x = torch.randn(shape, generator=generator, dtype=torch.float64) * size
            return x.to(rounded_to).to(device=device, dtype=dtype)

        def matrix(rows, columns, size=1.0):
            return normal(rows, columns, size=size / math.sqrt(rows))

        c = config
        self.embedding = normal(c.vocabulary, c.width)
        self.head = matrix(c.width, c.vocabulary, size=3.0)
        self.last_norm = 1 + normal(c.width, size=0.1)
        self.layers = []
        for _ in c.windows:
            sizes = {"q": c.heads_q, "k": c.heads_k, "v": c.heads_k}
            layer = {name: matrix(c.width, heads * c.head_dim, size=1.5) for name, heads in sizes.items()}
            layer |= {f"{name}_bias": normal(heads * c.head_dim, size=0.3) for name, heads in sizes.items()}
            layer |= {"o": matrix(c.heads_q * c.head_dim, c.width), "sinks": normal(c.heads_q)}
            layer |= {"gate": matrix(c.width, c.inner), "up": matrix(c.width, c.inner)}
            layer |= {"down": matrix(c.inner, c.width)}
            layer |= {f"{name}_norm": 1 + normal(c.width, size=0.1) for name in ("attention", "mlp")}
            self.layers.append(layer)
        frequencies = c.theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angles = torch.outer(torch.arange(MAX_POSITIONS, dtype=torch.float64), frequencies)
        self.cos, self.sin = (x.to(device=device, dtype=torch.float32) for x in (angles.cos(), angles.sin()))

    def logits(self, tokens, attention):
        """Returns the logits (tokens, vocabulary) of int64 tokens (tokens). They are float32, or float64 if the model
        is float64.
        """
        c = self.config
        x = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            rows = rms_norm(x, layer["attention_norm"])
            q, k, v = (
                (rows @ layer[name] + layer[f"{name}_bias"] if c.has_biases else rows @ layer[name])
                .unflatten(-1, (-1, c.head_dim)) for name in "qkv"
            )  # fmt: skip
            x = x + attention(number, q, k, v).flatten(-2) @ layer["o"]
            rows = rms_norm(x, layer["mlp_norm"])
            x = x + (torch.nn.functional.silu(rows @ layer["gate"]) * (rows @ layer["up"])) @ layer["down"]
        logits = rms_norm(x, self.last_norm) @ self.head
        return logits.float() if logits.dtype == torch.bfloat16 else logits


def rotated(model, x):
    """Applies rotary embedding to rows (tokens, heads, head_dim) at positions 0, 1 and so on. Computes in at least
    float32, then rounds.
    """
    wide = x.float() if x.dtype == torch.bfloat16 else x
    a, b = wide.chunk(2, -1)
    cos, sin = (t[: x.shape[0], None].to(wide.dtype) for t in (model.cos, model.sin))
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def whole_attention(model, *, without=()):
    """Returns the attention function of one full sequence. `without` can contain "sinks", "windows" or "first" (the
    first key), which the function then ignores on purpose.
    """
    c = model.config

    def attention(number, q, k, v):
        q, k = rotated(model, q), rotated(model, k)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        k, v = (x.repeat_interleave(c.heads_q // c.heads_k, 0) for x in (k, v))
        scores = q @ k.mT / math.sqrt(c.head_dim)
        row = torch.arange(q.shape[1], device=q.device)
        behind = row[:, None] - row[None, :]
        visible = behind >= 0
        if c.windows[number] is not None and "windows" not in without:
            visible &= behind < c.windows[number]
        if "first" in without:
            visible &= (row[None, :] > 0) | (behind == 0)
        scores = scores.masked_fill(~visible, -math.inf)
        if c.has_sinks and "sinks" not in without:
            sinks = model.layers[number]["sinks"][:, None, None].expand(-1, q.shape[1], 1)
            shares = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        return (shares @ v).transpose(0, 1)

    return attention


def whole_logits(model, tokens, **options):
    """Returns the logits (tokens, vocabulary) of one full sequence, computed without a cache."""
    return model.logits(torch.tensor(tokens, device=model.device), whole_attention(model, **options))


@functools.cache
def prompts(config, lengths):
    generator = torch.Generator().manual_seed(SEED + 1)
    return tuple(tuple(torch.randint(config.vocabulary, (n,), generator=generator).tolist()) for n in lengths)


@functools.cache
def truth(config, rounded_to, lengths, count):
    """Computes in float64 on the CPU. Returns for each prompt the tokens of `count` greedy steps, and the logits
    (count, vocabulary) from which the tokens were chosen. Every step recomputes the full sequence.
    """
    model = Model(config, torch.float64, rounded_to=rounded_to)
    results = []
    for prompt in prompts(config, lengths):
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(whole_logits(model, tokens)[-1].argmax()))
        results.append((tuple(tokens[len(prompt) :]), whole_logits(model, tokens[:-1])[len(prompt) - 1 :]))
    return results


def eager_errors(config, dtype, device, lengths, count):
    """Returns the largest errors of the logits of `count` steps in `dtype` without a cache. Each step gets the tokens
    of the reference.
    """
    model = Model(config, dtype, device, rounded_to=dtype)
    errors = []
    for prompt, (tokens, logits) in zip(prompts(config, lengths), truth(config, dtype, lengths, count)):
        found = whole_logits(model, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        errors.append((found.cpu().double() - logits).abs().max().item())
    return max(errors)
