#!/usr/bin/env python3
"""Uses attend with JAX's transformations: jit, grad, vmap, scan with checkpoint, arrays sharded over several devices,
and a ring.

    python examples/jax_attention.py [--seed 0]

Every result is compared with the formula, which JAX computes and differentiates itself. The program also checks that
the compiled sharded function contains no communication. On a CPU, XLA is configured to emulate four devices. The exit
status is 0 if all checks passed, 1 if a check failed, and 2 if the usage was wrong or JAX is missing.
"""

import argparse
import functools
import os
import sys

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install jax", file=sys.stderr)
    sys.exit(2)

import attend.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Allowed error relative to the largest magnitude of a result, which includes the error of the formula in float32.
BUDGET = 1e-4


def formula(q, k, v):
    """Computes causal attention of q, k and v (batch, seqlen, heads, head_dim), with the same number of heads."""
    s = jnp.einsum("bihd,bjhd->bhij", q, k, precision="highest") / np.sqrt(q.shape[-1])
    s = jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(s), v, precision="highest")


def attention(q, k, v):
    return attend.jax.attention(q, k, v, layout="bshd", causal=True)


def gradients(function):
    """Returns the gradients of a loss that weights each element of o differently."""
    return jax.grad(lambda q, k, v: jnp.sum(jnp.sin(function(q, k, v))), argnums=(0, 1, 2))


def layers(function):
    """Returns a function that runs eight layers in a scan. Backward recomputes each layer."""

    def run(q, k, v):
        step = jax.checkpoint(lambda x, _: (x + function(x, k, v), None))
        return jax.lax.scan(step, q, length=8)[0]

    return run


class Checks:
    """Prints each comparison and records whether one failed."""

    def __init__(self):
        self.failed = False

    def __call__(self, title, ours, truth):
        pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(truth)))
        error = float(np.max([np.abs(x - y).max() / np.abs(y).max() for x, y in pairs]))
        self.passes(title, error <= BUDGET, f"error {error:.1e}  budget {BUDGET:.1e}")  # False for NaN

    def passes(self, title, passed, text):
        self.failed |= not passed
        print(f"{title:<36} {text}  {'ok' if passed else 'FAILED'}")


def check_ring(check, devices, q, k, v):
    """Checks a ring, in which each device has a part of the rows, and keys and values are passed around. Requires
    jax.shard_map, which JAX has since 0.6.
    """
    if not hasattr(jax, "shard_map"):
        return
    size = len(devices)
    rows = q.shape[1] // (2 * size) * 2 * size
    order = attend.jax.ring_positions(rows, size, "zigzag")  # balances the work under a causal mask
    spec = PartitionSpec(None, "seq")
    ring = functools.partial(attend.jax.ring_attention, axis_name="seq", layout="bshd", causal=True)
    mesh = Mesh(devices, ("seq",))
    whole = jax.shard_map(ring, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    turned = [x[:, order] for x in (q, k, v)]
    compiled = jax.jit(gradients(whole)).lower(*turned).compile()
    truth = gradients(formula)(*(x[:, :rows] for x in (q, k, v)))
    check(f"grad of a ring of {size}", compiled(*turned), [x[:, order] for x in truth])
    check.passes("nothing is gathered", "all-gather" not in (compiled.as_text() or "all-gather"), "")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    keys = jax.random.split(jax.random.PRNGKey(parser.parse_args(arguments).seed), 3)
    q, k, v = (jax.random.normal(key, (4, 60, 4, 64)) for key in keys)
    check = Checks()

    check("jit", jax.jit(attention)(q, k, v), formula(q, k, v))
    check("grad", jax.jit(gradients(attention))(q, k, v), gradients(formula)(q, k, v))

    many = tuple(x[:, None] for x in (q, k, v))  # four problems with one sequence each
    check("vmap of grad", jax.vmap(gradients(attention))(*many), jax.vmap(gradients(formula))(*many))

    check(
        "grad of scan with checkpoint",
        jax.jit(gradients(layers(attention)))(q, k, v),
        gradients(layers(formula))(q, k, v),
    )

    devices = np.array(jax.devices()[:4])
    mesh = Mesh(devices, ("data",))
    shards = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))) for x in (q, k, v)]
    with jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else mesh:
        compiled = jax.jit(gradients(attention)).lower(*shards).compile()
    check(f"grad on {len(devices)} devices", compiled(*shards), gradients(formula)(q, k, v))
    check.passes("no communication between them", "all-gather" not in str(compiled.as_text()), "")
    check_ring(check, devices, q, k, v)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
