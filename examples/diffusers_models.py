#!/usr/bin/env python3
"""Runs diffusers' models with attend as torch's attention: a U-Net with a mask and a transformer, with gradients.

    python examples/diffusers_models.py [--device cuda]

The models are small and have random weights, so nothing is downloaded. Their code is not changed, because
`attend.activate()` is enough. The reference is the same model in float64 with torch's own attention. attend's error may
be at most twice the error of torch's attention in the model's dtype, plus 1e-6 of the largest element. On a GPU the
models are in bfloat16, and torch is configured to use its flash attention, which attend replaces. On a GPU the U-Net
has no mask, because torch's flash attention does not support one. The exit status is 0 if all checks passed; 1 if an
error exceeds its limit or attend was not called; and 2 if the usage was wrong or a package is missing.
"""

import argparse
import contextlib
import copy
import sys

try:
    import diffusers
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install torch diffusers", file=sys.stderr)
    sys.exit(2)

import attend

SHARE, FLOOR = 2.0, 1e-6
TOKENS, CHANNELS = 11, 32  # number of tokens and channels of the text on which an image is conditioned


class FlashCalls(TorchDispatchMode):
    """Counts the calls of torch's flash attention operators, forward and backward, which attend replaces."""

    def __init__(self):
        super().__init__()
        self.forward = self.backward = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if "flash_attention" in name:
            self.backward += "backward" in name
            self.forward += "backward" not in name
        return function(*args, **(kwargs or {}))


def unet(has_mask):
    model = diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, attention_head_dim=4,
        cross_attention_dim=CHANNELS, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    inputs = {
        "sample": torch.randn(2, 4, 16, 16),
        "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": torch.randn(2, TOKENS, CHANNELS),
    }
    if has_mask:  # the second of the two texts is shorter
        inputs["encoder_attention_mask"] = torch.arange(TOKENS) < torch.tensor([[TOKENS], [TOKENS // 2]])
    return model, inputs


def transformer():
    model = diffusers.FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=CHANNELS, pooled_projection_dim=CHANNELS, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    places = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1)
    inputs = {
        "hidden_states": torch.randn(2, 64, 4),
        "encoder_hidden_states": torch.randn(2, TOKENS, CHANNELS),
        "pooled_projections": torch.randn(2, CHANNELS),
        "timestep": torch.tensor([0.3, 0.9]),
        "img_ids": places.reshape(64, 3),
        "txt_ids": torch.zeros(TOKENS, 3),
    }
    return model, inputs


def results(model, inputs):
    """Returns two tensors: the output, and the concatenated gradients of the weights."""
    model.zero_grad()
    output = model(**inputs).sample
    output.float().square().mean().backward()
    gradients = [x.grad.flatten() for x in model.parameters() if x.grad is not None]
    return output.detach().double(), torch.cat(gradients).double()


def is_active():
    """Returns whether attend replaces torch's flash attention, according to torch's registry if it has one."""
    asked = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: "attend")
    return asked() == "attend"


def converted(inputs, device, dtype):
    return {name: x.to(device, dtype if x.is_floating_point() else x.dtype) for name, x in inputs.items()}


def check(title, model, inputs, device):
    """Returns whether attend was called and its error is within the limit."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = model.to(device, dtype)
    exact = copy.deepcopy(model).double()
    given = converted(inputs, device, dtype)
    with sdpa_kernel(SDPBackend.MATH):
        truth = results(exact, converted(given, device, torch.float64))
    where = contextlib.nullcontext() if device.type == "cpu" else sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    with where:
        baseline = results(model, given)
        attend.activate()
        try:
            with FlashCalls() as calls:
                found = results(model, given)
            passed = is_active() and calls.forward > 0 and calls.backward > 0
        finally:
            attend.restore()
    print(f"{title}: {calls.forward} calls forward, {calls.backward} backward  {'ok' if passed else 'FAILED'}")
    for name, ours, other, exactly in zip(("output", "gradients of the weights"), found, baseline, truth):
        error, errs = float((ours - exactly).abs().max()), float((other - exactly).abs().max())
        budget = SHARE * errs + FLOOR * float(exactly.abs().max())
        is_near = error <= budget  # False for NaN
        passed &= is_near
        print(
            f"  {name:<26} attend {error:.1e}  torch {errs:.1e}  budget {budget:.1e}  {'ok' if is_near else 'FAILED'}"
        )
    return passed


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: cuda, but torch finds no GPU")
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    diffusers.utils.logging.set_verbosity_error()
    print(f"attend {attend.__version__}, diffusers {diffusers.__version__}, torch {torch.__version__}, {device}")
    models = {"UNet2DConditionModel": unet(device.type == "cpu"), "FluxTransformer2DModel": transformer()}
    passed = [check(title, model, inputs, device) for title, (model, inputs) in models.items()]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
