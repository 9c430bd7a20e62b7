#!/usr/bin/env python3
"""Runs a Hugging Face model with attend as its attention, and checks its logits, padding, and generation with the KV
cache.

    python examples/hugging_face.py [--device cuda] [--no-padding]

The model is a small Llama with grouped-query attention, made from a config with random weights, so nothing is
downloaded. The reference is the same model in float64 with the formula below as its attention, because transformers'
"eager" attention computes its softmax in float32 for every dtype of the model. (The norms of the model also compute in
float32, but all models here have the same norms.) attend's error may be at most twice the error of `--baseline` ("sdpa"
or "eager" in float32), plus 1e-6 of the largest logit. The exit status is 0 if all checks passed, 1 if an error exceeds
its limit, and 2 if the usage was wrong, a package is missing, or attend does not support an option.
"""

import argparse
import copy
import sys

try:
    import torch
    import transformers
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install torch transformers", file=sys.stderr)
    sys.exit(2)

import attend
import attend.transformers

VOCABULARY, SHARE, FLOOR = 128, 2.0, 1e-6


def formula(module, query, key, value, attention_mask, scaling=None, **_):
    """Computes softmax(scaling * q k^T) v for q (batch, heads, seqlen, head_dim). The mask is bool, or None for a
    causal mask.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    s = scaling * query @ key.transpose(-1, -2)
    keep = torch.ones_like(s, dtype=torch.bool).tril() if attention_mask is None else attention_mask
    # Finite, so that padding rows, which see no key, do not become NaN.
    p = s.masked_fill(~keep, torch.finfo(s.dtype).min).softmax(-1)
    return (p @ value).transpose(1, 2), None


def make_models(options):
    """Makes three models with the same weights: {"truth": float64, "baseline": float32, "attend": float32}."""
    attend.transformers.register()
    transformers.AttentionInterface.register("formula", formula)
    AttentionMaskInterface.register("formula", sdpa_mask)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=options.num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,  # two query heads share one key head
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,  # generation always produces the requested number of tokens
    )
    torch.manual_seed(options.seed)
    weights = transformers.LlamaForCausalLM._from_config(config).state_dict()
    models = {}
    for name, attention in (("truth", "formula"), ("baseline", options.baseline), ("attend", "attend")):
        dtype = torch.float64 if name == "truth" else torch.float32
        # Each model needs a separate config, because the implementation is written into it.
        own = copy.deepcopy(config)
        model = transformers.LlamaForCausalLM._from_config(own, attn_implementation=attention, dtype=dtype)
        assert model.config._attn_implementation == attention
        model.load_state_dict(weights)
        models[name] = model.to(options.device, dtype).eval()
    return models


def compare(title, results, truths):
    """Prints the largest error of each model. Returns whether attend's error is within its limit.

    results, truths: logits of the same rows by model name.
    """
    errors = {name: (results[name].double() - truths[name]).abs().max() for name in results}
    budget = SHARE * errors["baseline"] + FLOOR * truths["attend"].abs().max()
    passed = bool(errors["attend"] <= budget)  # False for NaN
    print(f"{title:<34} attend {errors['attend']:.2e}  baseline {errors['baseline']:.2e}  budget {budget:.2e}  "
          f"{'ok' if passed else 'FAILED'}")  # fmt: skip
    return passed


def check_logits(title, models, ids, mask):
    """Compares the logits of one forward pass, except in padding rows."""
    seen = mask.bool()
    logits = {name: model(ids, attention_mask=mask).logits[seen] for name, model in models.items()}
    truth = logits.pop("truth")
    return compare(title, logits, dict.fromkeys(logits, truth))


def check_generation(title, models, ids, mask, count):
    """Compares greedy generation with the KV cache: the logits of each step are compared with one uncached pass over
    the full result.
    """
    results = {}
    for name in ("baseline", "attend"):
        results[name] = models[name].generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    logits = {name: torch.stack(result.logits, 1) for name, result in results.items()}
    truths = {name: uncached_logits(models["truth"], result.sequences, mask, count) for name, result in results.items()}
    # Each model is checked on the tokens that it generated, because two models can generate different tokens if two
    # logits are nearly equal.
    same = torch.equal(results["attend"].sequences, results["baseline"].sequences)
    print(f"{title}: {results['attend'].sequences[0, ids.shape[1] :].tolist()} "
          f"({'the same' if same else 'other'} words as the baseline)")  # fmt: skip
    return compare(title, logits, truths)


def uncached_logits(model, sequences, mask, count):
    """Returns float64 (batch, count, vocabulary): the model's logits before each of the last `count` tokens."""
    mask = torch.cat([mask, mask.new_ones(mask.shape[0], count)], 1)
    places = (mask.cumsum(1) - 1).clamp(min=0)  # as in generate(), padding does not count
    return model(sequences, attention_mask=mask, position_ids=places).logits[:, -count - 1 : -1]


def run(options):
    models = make_models(options)
    ids = torch.randint(2, VOCABULARY, (2, options.seq_len), device=options.device)
    whole = torch.ones_like(ids)
    padded = whole.clone()
    padded[0, : options.seq_len // 3] = 0
    cases = [("", ids, whole)]
    if options.padding:
        cases.append((", left padding", torch.where(padded.bool(), ids, 0), padded))
    passed, refused = True, 0
    for title, words, mask in cases:
        try:
            passed &= check_logits("logits" + title, models, words, mask)
            passed &= check_generation("generation" + title, models, words, mask, options.new_tokens)
        except attend.UnsupportedError as error:
            print(f"NOT RUN{title}: {error}")
            refused += 1
    if not passed:
        return 1
    return 2 if refused else 0


def check_device(parser: argparse.ArgumentParser, name: str) -> None:
    """Exits with one line and status 2 if there is no such device."""
    refusal = f"--device: {name!r}, allowed cpu, cuda, cuda:N"
    try:
        device = torch.device(name)
    except RuntimeError:
        parser.error(refusal)
    if device.type not in ("cpu", "cuda"):
        parser.error(refusal)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        parser.error(f"--device: {name}, but torch finds {torch.cuda.device_count() or 'no'} GPU")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--baseline", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--seq_len", type=int, default=48)
    parser.add_argument("--new_tokens", type=int, default=12)
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--padding", action=argparse.BooleanOptionalAction, default=True,
                        help="run again with left padding, where the mask is neither full nor causal")  # fmt: skip
    options = parser.parse_args(arguments)
    for name, least in (("seq_len", 3), ("new_tokens", 1), ("num_layers", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: {getattr(options, name)}, allowed a number of at least {least}")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed: {options.seed}, allowed 0 to {2**63 - 1}")
    check_device(parser, options.device)
    print(f"attend {attend.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, "
          f"{options.device}")  # fmt: skip
    with torch.no_grad():
        return run(options)


if __name__ == "__main__":
    sys.exit(main())
