"""Tests the values and derivatives of each torch operator that a score_mod may use. The values and derivatives are
compared with torch in float64.

There is only one key, so lse equals the score. Each tested value has a row.
"""

import math

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import attend

F = torch.nn.functional
ROWS = 96

FLOATS = {
    "exp": lambda x, y: torch.exp(x),
    "exp2": lambda x, y: torch.exp2(x),
    "expm1": lambda x, y: torch.expm1(x) + torch.expm1(x * 1e-6) * 1e6,
    "log": lambda x, y: torch.log(x.abs() + 0.1) + torch.log2(y.abs()) + torch.log10(x * x + 0.1)
    + torch.log1p(y.abs()),
    "roots": lambda x, y: torch.sqrt(x.abs()) + torch.rsqrt(y.abs() + 1) + y.abs() ** 0.5,
    "trigonometry": lambda x, y: torch.sin(x) + torch.cos(y) + torch.tan(x / 4),
    "hyperbolic": lambda x, y: torch.tanh(x) + torch.sinh(y / 2) + torch.cosh(x / 2),
    "sigmoid": lambda x, y: torch.sigmoid(x) + torch.erf(y) + torch.special.expit(y),
    "steps": lambda x, y: torch.floor(x) + torch.ceil(y) + torch.trunc(x) + torch.round(y * 2) + torch.sign(x),
    "frac": lambda x, y: torch.frac(x) + torch.abs(y) + torch.sgn(y) * x,
    "sums": lambda x, y: x + y * 3 - 2.5 + torch.add(x, y, alpha=0.5) - torch.sub(x, y, alpha=2) + (1 - x) - (-y),
    "quotients": lambda x, y: x / (y.abs() + 1) + 3 / (x.abs() + 2) + torch.reciprocal(y.abs() + 0.5) + y / 7,
    "quotients to whole numbers": lambda x, y: torch.div(x, y, rounding_mode="floor")
    + torch.div(x, 0.1, rounding_mode="floor") + torch.div(y, 0.3, rounding_mode="trunc"),
    "remainders": lambda x, y: x % 1.5 + y % -0.7 + torch.fmod(x, 0.4) + torch.fmod(y, -0.9) + x % y,
    "powers": lambda x, y: x**2 + y**3 - x**4 / 8 + x**1 + y**8 / 1e4 + x.abs() ** 1.7 + 2.0**y + x.abs() ** y,
    "squares": lambda x, y: torch.square(x) + x.pow(2.0) - torch.float_power(y.abs(), 1.5),
    "smaller and larger": lambda x, y: torch.minimum(x, y) * 2 + torch.maximum(x, y) + torch.fmin(x, y)
    + torch.fmax(y, x),
    "clamp": lambda x, y: x.clamp(-1.1, 1.1) + y.clamp(min=0.6) + x.clamp(max=-0.3) + torch.clamp(x, y - 1, y + 1),
    "clamp of crossed bounds": lambda x, y: x.clamp(1.0, -1.0) + torch.clamp_min(y, 0.0) + torch.clamp_max(y, 0.0),
    "relu": lambda x, y: F.relu(x) + F.relu6(y * 4) + F.leaky_relu(x, 0.3) + F.threshold(y, 0.1, 5.0),
    "elu": lambda x, y: F.elu(x) + F.elu(y, 1.7) + F.selu(x) + F.celu(y, 2.0),
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh") + F.silu(x) + F.mish(y),
    "softplus": lambda x, y: F.softplus(x) + F.softplus(y, 3.0, 2.0) + F.logsigmoid(x) + F.softsign(y),
    "hard": lambda x, y: F.hardtanh(x) + F.hardsigmoid(y * 2) + F.hardswish(x * 2) + F.hardtanh(y, -0.2, 0.7),
    "mixtures": lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.5)
    + torch.addcdiv(x, y, y.abs() + 1),
    "logaddexp": lambda x, y: torch.logaddexp(x, y) + torch.logaddexp(x * 30, -y * 30),
    "choices": lambda x, y: torch.where(x > y, x, y * 2) + torch.where(x < 0, 1.5, y) + x.masked_fill(y > 0, -3.0),
    "comparisons": lambda x, y: (x > y) * 1.0 + (x >= 0.5) + (x < y) * y + (x <= y) + x.eq(0.5) + (x != y) * 2,
    "not numbers": lambda x, y: torch.isnan(x) + torch.isnan(x / 0 * 0) * 2.0 + torch.isinf(y / 0) * 3
    + x.isneginf() + y,
    "finite": lambda x, y: torch.nan_to_num(torch.where(y > 0, math.inf * x.sign(), x), 1.5, 7.0, -7.0)
    + torch.isfinite(x) * y,
    "conversions": lambda x, y: x.to(torch.int32) + y.long() * 0.5 + (x * 50).to(torch.int8) + x.bool()
    + y.double() * 2,
    "constants": lambda x, y: x * torch.tensor(0.3) + torch.full((), 2.5) + torch.ones_like(y) * y
    + torch.zeros_like(x)
    + x.new_full((), 1 / 3) + math.pi + 1e-30 + torch.tensor([4.0, 5.0])[1],
    "stacks": lambda x, y: torch.stack([x, y, x * y]).sum() + torch.stack([x, y]).amax() + torch.stack([x, y]).prod(),
    "rows": lambda x, y: (x * torch.arange(3, dtype=torch.float64) + y).mean()
    + (x.unsqueeze(0).expand(4) * torch.ones(2, 4, dtype=torch.float64)).sum((0, 1)),
    "subscripts of what is computed": lambda x, y: torch.stack([x, y, x + y])[(x > 0).long() + (y > 0).int()],
    "a small product": lambda x, y: torch.mv(torch.stack([x, y]).view(1, 2).expand(3, 2), torch.stack([y, y])).sum(),
    "lengths": lambda x, y: torch.hypot(x, y) + torch.stack([x, y]).norm() + torch.stack([x, y * 2]).norm(p=1)
    + torch.linalg.vector_norm(torch.stack([x, y]), ord=math.inf) + torch.stack([x * 0, y * 0]).norm()
    + torch.linalg.vector_norm(torch.stack([x, y, x]).view(3, 1), dim=0)[0],
    "two by two": lambda x, y: torch.max(x, y) + torch.min(x, y) * 2 + torch.stack([x, y]).max()
    - torch.stack([y, x]).min(),
    "any and all": lambda x, y: torch.stack([x > 0, y > 0]).any() * x + torch.stack([x > 0, y > 0]).all() * y,
}  # fmt: skip

WHOLE = {
    "taken": lambda i, j: torch.take(torch.arange(12).view(3, 4) * 2, (i % 12).long()),
    "one of some": lambda i, j: torch.isin(i, torch.tensor([3, -2, 8]))
    + torch.isin(j, torch.arange(4), invert=True) * 2,
    "buckets": lambda i, j: torch.bucketize(i, torch.tensor([-5, -1, 0, 3])) + torch.bucketize(j, torch.tensor([2, 4]),
    right=True) + torch.searchsorted(torch.tensor([-3, 3]), j)
    + torch.searchsorted(torch.tensor([-3, 3]), i, side="right"),
    "unpacked": lambda i, j: sum(n * x for n, x in enumerate(torch.stack([i, j, i + j]).unbind())),
    "sums": lambda i, j: i + j - 3 * i + (5 - j) + torch.add(i, j, alpha=2) + (-i),
    "floor": lambda i, j: i // 3 + j // -4 + (-i) // 5 + i // (j.abs() + 1) + torch.floor_divide(i, 7),
    "to zero": lambda i, j: torch.div(i, 3, rounding_mode="trunc") + torch.div(j, -4, rounding_mode="trunc"),
    "remainders": lambda i, j: i % 5 + j % -3 + torch.fmod(i, 4) + torch.fmod(j, -3) + torch.remainder(-i, 7),
    "true quotients": lambda i, j: i / 4 + j / (i.abs() + 1),
    "bits": lambda i, j: (i & 12) + (j | 3) + (i ^ j) + ~i + (i & j),
    "shifts": lambda i, j: (i << 2) + (j >> 1) + (1 << (j & 7)) + (i >> (j & 3)),
    "shifts too far": lambda i, j: (i << 33) + (i >> 40) + (torch.ones_like(i) << (j.abs() + 28))
    + (i >> (j.abs() + 28)),
    "powers": lambda i, j: i**2 + j**3 + 2 ** (i.abs() % 20) + i**1,
    "clamp": lambda i, j: i.clamp(-2, 5) + j.clamp(min=0) + torch.minimum(i, j) * 2 + torch.maximum(i, j),
    "narrow": lambda i, j: (i * 37).to(torch.int8) + (j * 1000).to(torch.int16) + (i * 7).to(torch.uint8)
    + i.to(torch.uint8) * 40,
    "bools": lambda i, j: (i > 2) + ((i > 0) & (j > 0)) * 3 + ((i > 0) | (j > 0)) + ((i > 0) ^ (j > 0)) * 2
    + ~(i > 1) * 4,
    "logic": lambda i, j: torch.logical_and(i, j) * 1 + torch.logical_or(i, j) * 2
    + torch.logical_xor(i, j) + torch.logical_not(i),
    "sums of bools": lambda i, j: ((i > 0) + (j > 0)) * 5 + ((i > 0) * (j > 0)) * 7 + (i > 0).int() + (j > 0).float(),
    "sign": lambda i, j: torch.sign(i) * 2 + i.abs() + torch.floor(j) + torch.round(i) + (i == j) + (i != 3),
    "wraps": lambda i, j: ((i * 1_000_003 * 4_099) >> 8) + (i + 2147483647 - 2147483647),
    "large numbers": lambda i, j: (i + -2147483648 + 2147483647) + torch.where(j > 0, -2147483648, 5) // 2,
    "subscripts": lambda i, j: torch.arange(7)[i % 7] + torch.tensor([3, 1, 2])[j % 3] * 2,
    "selected rows": lambda i, j: torch.index_select(torch.arange(12).view(3, 4), 0, i % 3).sum()
    + torch.gather(torch.arange(5), 0, (j % 5).unsqueeze(0))[0],
}  # fmt: skip


def scores_of(mod, rows, dtype=torch.float64):
    q = torch.zeros(1, 1, rows, 8, dtype=dtype)
    k = torch.zeros(1, 1, 1, 8, dtype=dtype)
    _, lse = attend.flex_attention(q, k, k, mod, return_lse=True)
    return lse[0, 0]


def one_by_one(function, *given):
    return torch.stack([function(*numbers).double() for numbers in zip(*given)])


def close(found, wanted, budget=1e-12):
    assert torch.equal(torch.isfinite(found), torch.isfinite(wanted))
    worst = ((found - wanted).abs() / wanted.abs().clamp(min=1)).nan_to_num(0).max().item()
    print(f"{worst:.1e}, budget {budget:.0e}")
    assert worst <= budget


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name, rng):
    function = FLOATS[name]
    x, y = (torch.from_numpy(2 * rng.standard_normal(ROWS)).requires_grad_() for _ in range(2))
    # These values include steps of the functions and equal operands. They avoid the bounds of clamp, where torch's
    # derivative depends on its version.
    with torch.no_grad():
        x[:6] = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.25, 2.0])
        y[:6] = torch.tensor([1e-3, 1.0, -1.0, 1.0, 0.25, 0.5])
    found = scores_of(lambda score, b, h, q, k: score + function(x[q], y[q]), ROWS)
    wanted = one_by_one(function, x, y)
    close(found, wanted)
    finite = torch.isfinite(wanted)
    asked = torch.autograd.grad(found[finite].sum(), (x, y), materialize_grads=True)
    want = torch.autograd.grad(wanted[finite].sum(), (x, y), materialize_grads=True)
    for a, b in zip(asked, want):
        close(a, b, 1e-7)


@pytest.mark.parametrize("name", WHOLE)
def test_integers(name, rng):
    function = WHOLE[name]
    i, j = (torch.from_numpy(rng.integers(-9, 10, ROWS)).to(torch.int32) for _ in range(2))
    found = scores_of(lambda score, b, h, q, k: score + function(i[q], j[q]), ROWS)
    close(found, one_by_one(function, i, j), 1e-6 if "quotients" in name else 0)


@torch.library.custom_op("approx::tanh", mutates_args=())
def gyms_tanh(x: torch.Tensor) -> torch.Tensor:
    """An operator in a custom autograd function, as attention-gym defines it."""
    return torch.tanh(x)


@gyms_tanh.register_fake
def _(x):
    return torch.empty_like(x)


class GymsTanh(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.ops.approx.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 - ctx.saved_tensors[0] ** 2)


def test_the_tanh_of_attention_gym(rng):
    x = torch.from_numpy(rng.standard_normal(ROWS)).requires_grad_()
    found = scores_of(lambda score, b, h, q, k: score + 2 * GymsTanh.apply(x[q] / 2), ROWS)
    close(found, 2 * torch.tanh(x / 2))
    close(torch.autograd.grad(found.sum(), x)[0], 1 - torch.tanh(x / 2) ** 2)


def test_numbers_arrive_exactly():
    for value in (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -(2.0**-40), 1e16, 123456789.0, 16777217.0):
        found = scores_of(lambda score, b, h, q, k, value=value: score + value, 1)
        assert found.item() == value
    for value in (-math.inf, math.inf, math.nan):
        text = attend._flex.functions.traced(
            "score_mod", lambda score, b, h, q, k, value=value: score + value, torch.device("cpu")
        )[0].text
        assert text == {"inf": "score + inf", "-inf": "score + (-inf)", "nan": "score + (inf - inf)"}[str(value)]
    assert torch.isneginf(scores_of(lambda score, b, h, q, k: score - math.inf, 1)).all()


DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x)[6:])
def test_captured_tensors_of_all_dtypes(dtype, rng):
    x = torch.from_numpy(rng.integers(-100, 100, ROWS)).to(dtype)
    number = x[5].clone()
    mod = lambda score, b, h, q, k: score + x[q] * 2.0 + (x[q] + x[q]) + number
    found = scores_of(mod, ROWS)
    close(found, torch.stack([mod(torch.zeros((), dtype=torch.float64), 0, 0, n, 0) for n in range(ROWS)]), 1e-3)


def test_many_numbers_are_read_together(rng):
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
    numbers = [torch.tensor(1 + n % 3).to(dtypes[n % 7]) for n in range(30)]
    numbers = [x.requires_grad_() if x.is_floating_point() else x for x in numbers]
    table = torch.arange(ROWS)
    mod = lambda score, b, h, q, k: score + sum(x * (q + n) for n, x in enumerate(numbers)) + table[q]
    found = scores_of(mod, ROWS)
    close(
        found, torch.tensor([sum(x.item() * (q + n) for n, x in enumerate(numbers)) + q for q in range(ROWS)]).double()
    )
    floats = [n for n, x in enumerate(numbers) if x.is_floating_point()]
    for n, gradient in zip(floats, torch.autograd.grad(found.sum(), [numbers[n] for n in floats])):
        assert gradient.item() == torch.tensor(float(sum(q + n for q in range(ROWS)))).to(gradient.dtype).item()
    with pytest.raises(attend.ArgumentError, match="score_mod: 9 captures, allowed at most 8"):
        tables = [torch.ones(n + ROWS) for n in range(9)]
        scores_of(lambda score, b, h, q, k: score + sum(x[q] for x in tables), ROWS)


def test_deep_expressions(rng):
    x = torch.from_numpy(rng.standard_normal(ROWS))

    def mod(score, b, h, q, k):
        value = x[q]
        for n in range(400):
            value = value * 0.99 - n % 3 if n % 2 else 1 - value
        return score + value

    close(
        scores_of(mod, ROWS), torch.stack([mod(torch.zeros((), dtype=torch.float64), 0, 0, n, 0) for n in range(ROWS)])
    )


def test_zeros_keep_their_signs():
    mod = lambda score, b, h, q, k: score + torch.where(1 / torch.where(q > 0, 0.0, -0.0) > 0, 1.0, 2.0)
    assert scores_of(mod, 2).tolist() == [2, 1]


def test_subscripts_of_all_kinds(rng):
    x = torch.from_numpy(rng.standard_normal((3, 4, 5, 6))).requires_grad_()
    i = torch.from_numpy(rng.integers(-3, 3, ROWS))

    def of(x, n):
        a, b = x[n, :, 1], x[1][n, n + 1, ..., 2:4]
        c = x[..., n, None, :3].transpose(0, 1)[-1, n]
        d = x.view(12, 30)[n][::7].sum() + x.permute(3, 0, 2, 1)[n, n, n, n] + x.reshape(-1)[n * 7].squeeze()
        e = torch.cat([x[n, 0], x[0, n]])[n + 2, n] + x.unsqueeze(2)[0, :, 0, n][n, -2]
        first, second, *_ = x[n, 1, :, n]
        e = e + first * second
        rows = x[n, torch.arange(4), n]
        e = e + x[np.int64(1), n, np.int32(2), n]
        several = (torch.arange(3) + n) % 3
        e = e + x[several, :, several].sum(0)[3, 1] + x[:, several, several][2, 1, 4] + x[:, n, :, several][0, n, 2]
        e = e + x[several, n, :3][:, 1].prod() + x[1, several, ..., n][n].sum()
        return a[2, n] + b.sum() + c[0, 1] + d + e + rows.amax() + rows[n, 1]

    found = scores_of(lambda score, b, h, q, k: score + of(x, i[q]), ROWS)
    wanted = torch.stack([of(x, int(n)) for n in i])
    close(found, wanted)
    for a, b in zip(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x)):
        close(a, b)
