"""Defines the problems of bench/decode_vs_peers.py and the peers of each problem.

python/attend/_measure/decode_*.py define a problem and how each side computes it. python -m attend.bench decode also
uses these modules.
"""

import fnmatch
import random
from typing import Any

import peer_cases
from attend._measure import decode_problem, decode_sides
from attend._measure.decode_problem import CACHE_DTYPES, DESCALE, Problem, narrowed  # noqa: F401 (the script's names)
from attend._measure.decode_shapes import Setting, Shape

SEED = 1


def shape(batch: int, seqlen: int, **more: Any) -> Shape:
    return Shape((seqlen,) * batch, **more)


def uniform_lengths() -> tuple[int, ...]:
    draw = random.Random(SEED)
    return tuple(draw.randint(128, 8127) for _ in range(64))


def sets() -> dict[str, list[Shape]]:
    """Returns named sets of problems. Each ragged problem, in which sequences have different lengths, is followed by a
    problem with the same number of keys and equal lengths.
    """
    drawn = uniform_lengths()
    large = {"batch": 16, "seqlen": 8192}
    return {
        "table": [
            shape(1, 131072), shape(16, 8192), shape(64, 4096), shape(128, 1024), shape(16, 8192, heads_k=32),
            shape(16, 8192, heads=64, head_dim=64), shape(64, 4096, rows=4), shape(1, 1024), shape(1, 4096),
            shape(1, 32768), shape(8, 4096), shape(16, 8192, heads_k=1), shape(1, 32768, rows=4),
        ],
        "ragged": [
            Shape((*(1024,) * 63, 32768), note="ragged-63x1024+32768"),
            shape(64, 1520), Shape(drawn, note="ragged-64x128..8127"), shape(64, sum(drawn) // 64),
        ],
        "rows": [shape(64, 4096), *(shape(64, 4096, rows=rows) for rows in (2, 4, 16))],
        "groups": [shape(**large), *(shape(**large, heads=8 * group) for group in (5, 7, 16))],
        "dims": [shape(**large), *(shape(**large, head_dim=d) for d in (80, 96, 256))],
        "prefill": [
            shape(1, 8192, rows=2048), shape(4, 4096, rows=1024), shape(16, 2048, rows=512), shape(1, 32768, rows=512),
            shape(8, 4096, rows=128), shape(1, 32768, rows=128), shape(1, 131072, rows=2048),
            shape(1, 16384, heads=64, head_dim=64, rows=2048), shape(1, 8192, head_dim=256, rows=2048),
        ],
        "mla": [shape(32, 4096, heads=heads, heads_k=1, head_dim=576, head_dim_v=512) for heads in (16, 128)],
    }  # fmt: skip


def chosen(patterns: str) -> list[Shape]:
    """Returns the problems that a comma-separated list of set names and problem names selects, without duplicates.
    Problem names may have wildcards.
    """
    known = sets()
    everything = [one for group in known.values() for one in group]
    found: dict[str, Shape] = {}
    for pattern in patterns.split(","):
        matching = known.get(pattern) or [x for x in everything if fnmatch.fnmatch(x.name, pattern)]
        if not matching:
            raise ValueError(f"{pattern!r} names no case, allowed {', '.join(known)} or names: "
                             f"{', '.join(dict.fromkeys(x.name for x in everything))}")  # fmt: skip
        found |= {x.name: x for x in matching}
    return list(found.values())


def problem(one: Shape, setting: Setting) -> Problem:
    """Returns a problem with its sides. cuDNN does not support pages, several rows, or different lengths. No peer
    supports 8-bit caches.
    """
    found = decode_problem.problem(one, setting)
    found.sides = decode_sides.ours(found)
    if setting.cache is not None or one.head_dim_v is not None:
        return found
    if setting.page_size == 0 and one.rows == 1 and one.is_uniform:
        found.sides["cudnn"] = decode_sides.sdpa(found, peer_cases.SDP["cudnn"])
    module = peer_cases.flash_attention_3()
    if hasattr(module, "flash_attn_with_kvcache"):
        found.sides["fa3"] = decode_sides.flash_attn_kvcache(found, module, "page_table")
    return found
