"""Small calls of attend.decode and attend.append: usual, unusual and invalid ones.

Each entry of a table is a function that returns the arguments which differ from those of a valid call. It returns new
arrays each time.
"""

from __future__ import annotations

import attend
import numpy as np
from conftest import SEED


def small(torch, device="cpu", dtype=None, page_size=0):
    """Returns q (2, 4, 1, 8), caches of 2 rows or 8 pages and seqlens_k (2), in new memory with the same numbers each
    time.
    """
    generator = torch.Generator().manual_seed(SEED)
    shape = (8, 2, page_size, 8) if page_size else (2, 2, 20, 8)
    given = {
        name: torch.randn(s, generator=generator).to(device, dtype or torch.float32)
        for name, s in (("q", (2, 4, 1, 8)), ("k_cache", shape), ("v_cache", shape))
    }
    given["seqlens_k"] = torch.tensor([10, 13], dtype=torch.int32, device=device)
    if page_size:
        given["page_table"] = torch.tensor([[3, 1, 0, 2], [7, 4, 6, 5]], dtype=torch.int32, device=device)
    return given


def new_keys(torch, device="cpu", rows=2):
    generator = torch.Generator().manual_seed(SEED + 1)
    k, v = (torch.randn(2, 2, rows, 8, generator=generator).to(device) for _ in range(2))
    return {"k": k, "v": v}


def rotary(torch, device="cpu", **fields):
    angles = torch.arange(160.0, device=device).reshape(40, 4)
    return attend.Rotary(angles.cos(), angles.sin(), **fields)


def packed(given):
    """Returns the arguments in packed form: one row of q for each sequence, and offsets."""
    return given | {"q": given["q"][:, :, 0], "cu_seqlens_q": given["seqlens_k"].new_tensor([0, 1, 2])}


# Usual calls: the arguments that differ from decode(**small()).
USUAL = {
    "nothing": lambda torch, x: {},
    "capacity": lambda torch, x: {"seqlens_k": None},
    "a number": lambda torch, x: {"seqlens_k": 7},
    "a number of dead sequences": lambda torch, x: {"seqlens_k": -1},
    "a number of packed rows": lambda torch, x: packed(x) | {"seqlens_k": 7},
    "packed": lambda torch, x: packed(x),
    "packed with a bound": lambda torch, x: packed(x) | {"max_seqlen_q": 1, "return_lse": True},
    "bshd": lambda torch, x: (
        {"layout": "bs" + "hd"}
        | {name: x[name].transpose(1, 2) for name in ("q", "k_cache")}
        | {"v_cache": x["v_cache"].transpose(1, 2)}
    ),
    "columns of the keys": lambda torch, x: {"v_cache": None, "head_dim_v": 5, "return_lse": True},
    "a width that is right": lambda torch, x: {"head_dim_v": 8},
    "narrow values": lambda torch, x: {"v_cache": x["v_cache"][..., :4], "return_lse": True},
    "window of None": lambda torch, x: {"window": (3, None)},
    "window in a list": lambda torch, x: {"window": [-1, 2], "causal": False},
    "numbers": lambda torch, x: {"scale": 1, "softcap": 3, "causal": 1, "lse_base2": True, "return_lse": 1},
    "numbers of NumPy": lambda torch, x: {"scale": np.float64(0.3), "softcap": np.float64(3)},
    "no rows": lambda torch, x: {"q": x["q"][:, :, :0], "return_lse": True},
    "no sequences": lambda torch, x: {"q": x["q"][:0], "seqlens_k": 3, "return_lse": True},
    "parameters": lambda torch, x: {"q": torch.nn.Parameter(x["q"], requires_grad=False)},
    "reference": lambda torch, x: {"compute": "reference"},
    "float64": lambda torch, x: {name: x[name].double() for name in ("q", "k_cache", "v_cache")},
    "options of heads": lambda torch, x: {"sinks": x["q"][0, :, 0, 0], "alibi_slopes": x["q"][:, :, 0, 0].abs()},
    "new keys": lambda torch, x: new_keys(torch),
    "new keys at a number": lambda torch, x: new_keys(torch) | {"seqlens_k": 4, "return_lse": True},
    "rotated keys": lambda torch, x: new_keys(torch) | {"rotary": rotary(torch), "query_positions": "first"},
    "rotated columns": lambda torch, x: (
        new_keys(torch)
        | {"rotary": rotary(torch, interleaved=True, seqlens=x["seqlens_k"] + 1), "k_norm": x["q"][0, 0, 0]}
    ),
    "slots": lambda torch, x: new_keys(torch) | {"slot_mapping": torch.tensor([[3, -1], [25, 26]])},
    "packed new keys": lambda torch, x: (
        packed(x)
        | {name: y.transpose(1, 2).flatten(0, 1) for name, y in new_keys(torch).items()}
        | {"cu_seqlens_new": torch.tensor([0, 1, 4], dtype=torch.int32)}
    ),
}


# Calls that only the Python code handles. Their results must be the same.
UNUSUAL = {
    "a number of NumPy": lambda torch, x: {"seqlens_k": np.int32(7)},
    "a flag for a number": lambda torch, x: {"seqlens_k": True},
    "a tensor for a number": lambda torch, x: {"scale": torch.tensor(0.3), "softcap": torch.tensor(2.0)},
    "a width of NumPy": lambda torch, x: {"v_cache": None, "head_dim_v": np.int64(5)},
    "a window of NumPy": lambda torch, x: {"window": np.array([3, 0])},
    "columns of q apart": lambda torch, x: {"q": torch.stack([x["q"], x["q"]], -1)[..., 0]},
    "rows of q that are one": lambda torch, x: {"q": x["q"].expand(2, 4, 3, 8), "return_lse": True},
    "a subclass": lambda torch, x: {"q": x["q"].as_subclass(type("OfAUser", (torch.Tensor,), {}))},
    "a negated view": lambda torch, x: {"q": torch._neg_view(x["q"])},
}


# Invalid arguments of decode.
WRONG = {
    "q None": lambda torch, x: {"q": None},
    "k_cache None": lambda torch, x: {"k_cache": None},
    "q dims": lambda torch, x: {"q": x["q"][0]},
    "q no dims": lambda torch, x: {"q": x["q"][0, 0, 0, 0]},
    "k_cache dims": lambda torch, x: {"k_cache": x["k_cache"][0]},
    "v_cache dims": lambda torch, x: {"v_cache": x["v_cache"][0]},
    "v_cache shape": lambda torch, x: {"v_cache": x["v_cache"][:, :, :5]},
    "dtypes": lambda torch, x: {"k_cache": x["k_cache"].half()},
    "heads": lambda torch, x: {"q": x["q"][:, :3], "out": None},
    "head_dim": lambda torch, x: {"q": x["q"][..., :4]},
    "few rows": lambda torch, x: {"k_cache": x["k_cache"][:1], "v_cache": x["v_cache"][:1]},
    "gaps": lambda torch, x: {"k_cache": torch.stack([x["k_cache"]] * 2, -1)[..., 0]},
    "no width": lambda torch, x: {"v_cache": None},
    "width 9": lambda torch, x: {"v_cache": None, "head_dim_v": 9},
    "width 0": lambda torch, x: {"v_cache": None, "head_dim_v": 0},
    "two widths": lambda torch, x: {"head_dim_v": 4},
    "width as text": lambda torch, x: {"head_dim_v": "8"},
    "layout thd": lambda torch, x: {"layout": "thd"},
    "layout of packed": lambda torch, x: packed(x) | {"layout": "thd", "out": None},
    "layout 3": lambda torch, x: {"layout": 3},
    "layout of no text": lambda torch, x: {"layout": "\ud800"},
    "lengths shape": lambda torch, x: {"seqlens_k": x["seqlens_k"][:1]},
    "lengths dtype": lambda torch, x: {"seqlens_k": x["seqlens_k"].long()},
    "lengths list": lambda torch, x: {"seqlens_k": [1, 2]},
    "lengths array": lambda torch, x: {"seqlens_k": np.ones(2, np.int32)},
    "length 2**31": lambda torch, x: {"seqlens_k": 2**31},
    "length 2**80": lambda torch, x: {"seqlens_k": -(2**80)},
    "length 1.5": lambda torch, x: {"seqlens_k": 1.5},
    "table dims": lambda torch, x: {"page_table": x["seqlens_k"]},
    "table rows": lambda torch, x: {"page_table": x["seqlens_k"][None]},
    "batch_idx": lambda torch, x: {"cache_batch_idx": x["seqlens_k"][:1]},
    "leftpad": lambda torch, x: {"cache_leftpad": x["seqlens_k"] * 1.0},
    "bound alone": lambda torch, x: {"max_seqlen_q": 3},
    "bound as text": lambda torch, x: {"max_seqlen_q": "3"},
    "offsets": lambda torch, x: packed(x) | {"cu_seqlens_q": x["seqlens_k"].new_tensor([0, 2, 1]), "out": None},
    "offsets dense": lambda torch, x: {"cu_seqlens_q": x["seqlens_k"].new_tensor([0, 1, 2])},
    "offsets no dims": lambda torch, x: packed(x) | {"cu_seqlens_q": x["seqlens_k"][0], "seqlens_k": 3, "out": None},
    "window": lambda torch, x: {"window": (-2, 0)},
    "window of three": lambda torch, x: {"window": (1, 2, 3)},
    "window None": lambda torch, x: {"window": None},
    "window of text": lambda torch, x: {"window": ("a", 0)},
    "scale": lambda torch, x: {"scale": float("inf")},
    "scale text": lambda torch, x: {"scale": "1"},
    "softcap": lambda torch, x: {"softcap": -1.0},
    "softcap None": lambda torch, x: {"softcap": None},
    "causal": lambda torch, x: {"causal": "yes"},
    "causal None": lambda torch, x: {"causal": None},
    "lse_base2": lambda torch, x: {"lse_base2": 3},
    "slopes": lambda torch, x: {"alibi_slopes": torch.ones(3)},
    "sinks": lambda torch, x: {"sinks": x["seqlens_k"]},
    "tree": lambda torch, x: {"tree_mask": x["seqlens_k"]},
    "compute": lambda torch, x: {"compute": "nobody"},
    "compute 3": lambda torch, x: {"compute": 3},
    "out shape": lambda torch, x: {"out": x["q"][:1].clone()},
    "out dims": lambda torch, x: {"out": x["q"][0].clone()},
    "out dtype": lambda torch, x: {"out": x["q"].half()},
    "out is q": lambda torch, x: {"out": x["q"]},
    "out gaps": lambda torch, x: {"out": torch.zeros(2, 4, 1, 8, 2)[..., 0]},
    "out repeated": lambda torch, x: {"out": x["q"][:1].clone().expand(2, 4, 1, 8)},
    "out list": lambda torch, x: {"out": [1]},
    "requires grad": lambda torch, x: {"k_cache": x["k_cache"].requires_grad_()},
    "meta": lambda torch, x: {"k_cache": x["k_cache"].to("meta")},
    "sparse": lambda torch, x: {"k_cache": x["k_cache"].to_sparse()},
    "negated cache": lambda torch, x: {"k_cache": torch._neg_view(x["k_cache"])},
    "positions alone": lambda torch, x: {"query_positions": "one"},
    "positions without k": lambda torch, x: {"positions": x["seqlens_k"]},
    "rotary without k": lambda torch, x: {"rotary": rotary(torch)},
    "bound without k": lambda torch, x: {"max_seqlen_new": 0},
    "norm without k": lambda torch, x: {"k_norm": x["q"][0, 0, 0]},
    "v without k": lambda torch, x: {"v": x["q"]},
    "k without v": lambda torch, x: new_keys(torch) | {"v": None},
    "k without lengths": lambda torch, x: new_keys(torch) | {"seqlens_k": None},
    "k of one sequence": lambda torch, x: {name: y[:1] for name, y in new_keys(torch).items()},
    "rotary tuple": lambda torch, x: new_keys(torch) | {"rotary": tuple(rotary(torch))},
    "rotary None": lambda torch, x: new_keys(torch) | {"rotary": attend.Rotary(None, torch.ones(4, 4))},
    "rotary flag": lambda torch, x: new_keys(torch) | {"rotary": rotary(torch, interleaved="no")},
    "rotary column": lambda torch, x: new_keys(torch) | {"rotary": rotary(torch, first_column=7)},
    "query_positions": lambda torch, x: new_keys(torch) | {"query_positions": "all"},
    "norm_eps": lambda torch, x: new_keys(torch) | {"norm_eps": -1.0},
}


# Invalid arguments of append.
WRONG_APPENDS = {
    "k None": lambda torch, x: {"k": None},
    "k_cache None": lambda torch, x: {"k_cache": None},
    "k list": lambda torch, x: {"v": [1]},
    "no lengths": lambda torch, x: {"seqlens_k": None},
    "shape": lambda torch, x: {"v": x["v"][:, :, :1]},
    "layout thd": lambda torch, x: {"layout": "thd"},
    "packed": lambda torch, x: {"cu_seqlens_new": x["seqlens_k"].new_tensor([0, 1, 2])},
    "bound": lambda torch, x: {"max_seqlen_new": 3},
    "q_out without q": lambda torch, x: {"q_out": x["k"].clone()},
    "q_norm without q": lambda torch, x: {"q_norm": x["k"][0, 0, 0]},
    "offsets without q": lambda torch, x: {"cu_seqlens_q": x["seqlens_k"]},
    "bound without q": lambda torch, x: {"max_seqlen_q": 0},
    "positions without q": lambda torch, x: {"query_positions": "first"},
    "q no dims": lambda torch, x: {"q": x["k"][0, 0, 0, 0]},
    "q_out shape": lambda torch, x: {"q": x["k"].clone(), "q_out": x["k"][:1].clone()},
    "q_out is k": lambda torch, x: {"q": x["k"].clone(), "q_out": x["k"]},
    "caches": lambda torch, x: {"v_cache": x["k_cache"]},
    "slots": lambda torch, x: {"slot_mapping": torch.ones(2, 2, dtype=torch.int32)},
    "requires grad": lambda torch, x: {"v": x["v"].requires_grad_()},
}
