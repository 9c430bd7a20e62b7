"""Score and mask functions as users of FlexAttention write them, and a reference that computes attention with them.

A case is a function that makes the score_mod or mask_mod from its captured tensors. The reference can therefore run the
same score_mod with float64 tensors.
"""

import functools
import math
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

BATCH, HEADS, HEADS_K, ROWS, KEYS, DIM = 2, 4, 2, 77, 130, 16
SQUARE = 144  # number of tokens of an image of 12 x 12, or a video of 4 x 6 x 6


class Elements(TorchFunctionMode):
    """Replaces x[i, j] with 0-dimensional tensors by a single operator, which has a derivative and supports vmap."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            given = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, torch.Tensor) and i.dim() == 0 for i in given):
                return torch.ops.aten.index.Tensor(
                    args[0], [None if i == slice(None) else torch.as_tensor(i) for i in given]
                )
        return func(*args, **(kwargs or {}))


def mapped(function, positions, score=None):
    """Returns the values of the function for all pairs of a row and a key, by torch.vmap."""
    lead = () if score is None else (0,)
    for place in (3, 2, 1, 0):
        function = torch.vmap(function, in_dims=(*lead, *(0 if n == place else None for n in range(4))))
    with Elements():
        return function(*positions) if score is None else function(score, *positions)


def reference(q, k, v, score_mod=None, mask_mod=None, scale=None):
    """Returns (o, lse), computed from float64 tensors and differentiable."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).expand(q.shape[0], -1, -1, -1) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    positions = [torch.arange(n, dtype=torch.int32) for n in s.shape]
    if score_mod is not None:
        s = mapped(score_mod, positions, s).to(s.dtype)
    if mask_mod is not None:
        s = torch.where(mapped(mask_mod, positions), s, -math.inf)
    seen = (s > -math.inf).any(-1, keepdim=True)
    lse = torch.where(seen, s, 0.0).logsumexp(-1, keepdim=True)
    o = torch.where(seen, (s - lse).exp(), 0.0) @ v
    return o, torch.where(seen, lse, -math.inf)[..., 0]


def case(**captures):
    """Decorates a function of a namespace of tensors. Each entry of `captures` is a function that makes one of these
    tensors from a torch.Generator.
    """

    def mark(make):
        make.captures = captures
        return make

    return mark


def captures_of(make, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: x(generator) for name, x in make.captures.items()}


def normal(*shape):
    return lambda generator: torch.randn(*shape, generator=generator)


def near(value, *shape):
    return lambda generator: value + 0.2 * torch.randn(shape, generator=generator)


def integers(high, *shape):
    return lambda generator: torch.randint(high, shape, generator=generator)


def rising(high, *shape):
    return lambda generator: torch.randint(high, shape, generator=generator).sort(-1).values


def bools(*shape):
    return lambda generator: torch.rand(*shape, generator=generator) < 0.4


# Scores


@case()
def alibi(c):
    return lambda score, b, h, q, k: score - torch.exp2(-((h + 1) * 8.0 / HEADS)) * (q - k).abs()


@case(slope=near(0.3, HEADS))
def learned_alibi(c):
    return lambda score, b, h, q, k: score + c.slope[h] * (k - q)


@case(cap=near(1.5))
def softcap(c):
    return lambda score, b, h, q, k: c.cap * torch.tanh(score / c.cap)


@case()
def relative(c):
    return lambda score, b, h, q, k: score + (q - k) / 16


@case(table=normal(HEADS, 33))
def band(c):
    return lambda score, b, h, q, k: score + c.table[h, torch.clamp(q - k, -16, 16) + 16]


@case(table=normal(32, HEADS))
def t5(c):
    def bucket(distance):
        result = torch.where(distance > 0, 16, 0)
        distance = distance.abs()
        far = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8 + 1e-3).to(torch.int64)
        return result + torch.where(distance < 8, distance, torch.minimum(far, torch.tensor(15)))

    return lambda score, b, h, q, k: score + c.table[bucket(k - q)][h]


@case(bias=normal(BATCH, HEADS, ROWS, KEYS))
def full_bias(c):
    return lambda score, b, h, q, k: score + c.bias[b][h][q][k]


@case(bias=normal(ROWS, KEYS), gain=near(1.0, HEADS))
def graphormer(c):
    return lambda score, b, h, q, k: c.gain[h] * score + c.bias[q, k]


@case()
def sandwich(c):
    def mod(score, b, h, q, k):
        i = torch.arange(1, 5)
        return score + torch.cos((q - k) / 10000 ** (2 * i / 8)).sum() * (h + 1)

    return mod


@case(q_rope=normal(BATCH, HEADS, ROWS, 8), k_rope=normal(BATCH, KEYS, 8))
def mla_rope(c):
    return lambda score, b, h, q, k: score + torch.dot(c.q_rope[b, h, q], c.k_rope[b, k]) * 0.25


@case(rows=normal(ROWS, 6), keys=normal(6, KEYS))
def low_rank(c):
    return lambda score, b, h, q, k: score + (c.rows[q] * c.keys[:, k] * torch.arange(6.0)).sum()


@case()
def log_sigmoid_weights(c):
    return lambda score, b, h, q, k: torch.log(torch.sigmoid(score) + 0.01)


@case(shift=near(0.1))
def log_relu_weights(c):
    return lambda score, b, h, q, k: torch.log(torch.nn.functional.relu(score - c.shift) + 0.1)


@case()
def gelu_and_others(c):
    f = torch.nn.functional
    return lambda score, b, h, q, k: f.gelu(score) + f.silu(score) + f.softplus(-score) - f.elu(score) / 2


@case()
def more_functions(c):
    def mod(score, b, h, q, k):
        x = score.clamp(-2, 2)
        y = torch.expm1(x / 4) + torch.sinh(x) / 8 + torch.cosh(x) / 8 + torch.rsqrt(x * x + 1) + x**3 / 16
        return y + torch.logaddexp(x, -x) + torch.nn.functional.leaky_relu(x, 0.2) + torch.erf(x) + x.sin() * x.cos()

    return mod


@case(table=normal(7, HEADS))
def whole_numbers(c):
    def mod(score, b, h, q, k):
        n = (q - k) // 5 + (q - k) % 7 + torch.div(q - k, 3, rounding_mode="trunc") + torch.fmod(k - q, 4)
        n = n + ((q ^ k) & 6) + (q << 1 >> 2) + 2**h + (~q & 3) + (q > k) * 2 + q.to(torch.int8) // 64
        return score + c.table[n % 7, h] + torch.floor(score / 0.3) * 0.1 + torch.where(n > 9, 0.5, n / 20)

    return mod


@case(scale=near(1.0, HEADS, 1), bias=normal(3, 5, HEADS))
def computed_captures(c):
    def mod(score, b, h, q, k):
        table = (c.bias.permute(2, 0, 1) * c.scale[:, :, None]).softmax(-1)
        return score + table[h, q % 3, k % 5] + table.view(HEADS, -1)[h, k % 15] + c.bias[1].mT[h][q % 5]

    return mod


@case(table=normal(9, HEADS))
def negative_subscripts(c):
    return lambda score, b, h, q, k: score + c.table[(q - k).clamp(-9, 8), h] + c.table[-1][h] + c.table[1:, 0][h]


@case(weight=normal(6, HEADS), kind=integers(6, BATCH, KEYS))
def embedded(c):
    embedding = torch.nn.functional.embedding
    return lambda score, b, h, q, k: score + embedding(c.kind[b, k], c.weight)[h]


@case(length=lambda _: torch.tensor([50, 120]))
def padding_by_score(c):
    return lambda score, b, h, q, k: torch.where(k < c.length[b], score, float("-inf"))


SCORES = {
    f.__name__: f
    for f in (
        alibi, learned_alibi, softcap, relative, band, t5, full_bias, graphormer, sandwich, mla_rope, low_rank,
        log_sigmoid_weights, log_relu_weights, gelu_and_others, more_functions, whole_numbers, computed_captures,
        negative_subscripts, embedded, padding_by_score,
    )
}  # fmt: skip


def double(captures):
    return SimpleNamespace(**{name: x.double() if x.is_floating_point() else x for name, x in captures.items()})


def leaves(captures, dtype=None):
    """Returns the captured tensors. Float tensors have requires_grad."""
    found = {}
    for name, x in captures.items():
        floats = x.is_floating_point()
        found[name] = (x.to(dtype) if dtype else x.clone()).requires_grad_() if floats else x
    return SimpleNamespace(**found)


@functools.cache
def tensors(dtype, rows=ROWS, keys=KEYS, batch=BATCH, seed=0, heads_k=HEADS_K):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, HEADS, rows, DIM), (batch, heads_k, keys, DIM), (batch, heads_k, keys, DIM + 8))
    return tuple(torch.randn(s, generator=generator).to(dtype) for s in shapes)


def error(found, wanted):
    """Returns the largest difference, relative to the largest value or to 1. It is infinite if an element is infinite
    or NaN in only one of the two tensors.
    """
    found, wanted = found.detach().double(), wanted.detach().double()
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    same = torch.isinf(wanted) & (found == wanted)
    difference = torch.where(same, 0.0, (found - wanted).abs())
    finite = wanted[torch.isfinite(wanted)].abs()
    largest = max(1.0, finite.max().item() if finite.numel() else 0.0)
    worst = difference.max().item() / largest if difference.numel() else 0.0
    return math.inf if math.isnan(worst) else worst


def check(name, budget, found, wanted):
    worst = error(found, wanted)
    print(f"{name}: {worst:.1e}, budget {budget:.0e}")
    assert worst <= budget, (name, worst)
