"""Tests of attend.ring in torch: compilers, process groups, and context_parallel."""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

import attend
from attend import ring
from ring_ranks import normal


def run_compiled(rank, size, device, dropout_p):
    """Runs a function that contains a ring, compiled and not compiled. Returns o and the gradients."""
    import torch
    import torch.distributed as dist

    def program(q, k, v, seed):
        o, lse = ring.ring_attention(
            q * 2, k, v, causal=True, dropout_p=dropout_p, seed=seed, group=dist.group.WORLD, return_lse=True
        )
        return o.sin() + lse[..., None]

    def results(function, seed):
        inputs = [ring.shard(normal(device, 1, 2, 24, 8, seed=n), 2).requires_grad_() for n in range(3)]
        out = function(*inputs, seed)
        out.square().sum().backward()
        return out.detach(), *(x.grad for x in inputs)

    compiled = torch.compile(program, fullgraph=True)
    for seed in (torch.tensor(5), torch.tensor(6)) if dropout_p else (0,):
        for name, found, want in zip("oqkv", results(compiled, seed), results(program, seed)):
            error = (found - want).abs().max().item()
            budget = 1e-6 * max(1.0, want.abs().max().item())
            assert error <= budget, f"{name}: error {error:.2e}, budget {budget:.2e}"
    return True


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_compiled_whole(ranks, dropout_p):
    assert ranks(2).run(run_compiled, dropout_p) == [True, True]


def run_compiled_drop_in(rank, size, device):
    import torch
    import torch.distributed as dist
    from attend.ring_flash_attn import zigzag_ring_flash_attn_varlen_qkvpacked_func as function

    offsets = torch.tensor([0, 4, 10], dtype=torch.int32, device=device)
    qkv = normal(device, 10, 3, 2, 8)

    def program(qkv):
        return function(qkv, offsets, 6, causal=True, group=dist.group.WORLD) * 2

    error = (torch.compile(program, fullgraph=True)(qkv) - program(qkv)).abs().max().item()
    assert error <= 1e-5, f"{error:.2e}"
    return True


def test_a_drop_in_is_compiled_whole(ranks):
    assert ranks(2).run(run_compiled_drop_in) == [True, True]


def run_opcheck(rank, size, device):
    import torch
    from attend._settings import Extras, Settings
    from torch.library import opcheck

    inputs = [normal(device, 1, 2, 6, 8, seed=n).requires_grad_() for n in range(3)]
    opcheck(
        torch.ops.attend.ring_forward, (*inputs, *Extras(), *Settings(causal=True), "", "zigzag", "exchange", False)
    )
    return True


def test_the_operators_keep_torchs_rules(ranks):
    assert ranks(2).run(run_opcheck) == [True, True]


def run_with_more_groups_on_one_rank(rank, size, device):
    import torch.distributed as dist

    if rank == 1:
        dist.new_group([1], use_local_synchronization=True)
    ring.connect(None, device, timeout=30)
    x = normal(device, 1, 2, 8 * size, 8)
    mine = ring.shard(x, 2)
    error = ring.unshard(ring.ring_attention(mine, mine, mine), 2) - attend.attention(x, x, x)
    return error.abs().max().item() <= 1e-5


def test_ranks_need_not_have_as_many_groups(new_ranks):
    """torch.distributed numbers the groups of a process. Rings must work if the same group has different numbers on
    different ranks.
    """
    assert new_ranks(2).run(run_with_more_groups_on_one_rank) == [True] * 2


def run_groups(rank, size, device):
    """The rows and columns of a mesh are separate rings. The contexts of these rings are freed with the groups."""
    import torch
    import torch.distributed as dist
    from attend.ring import _contexts

    mesh = dist.init_device_mesh(device.type, (2, 2), mesh_dim_names=("data", "sequence"))
    x = normal(device, 1, 2, 16, 8, seed=mesh.get_local_rank("data"))
    whole = ring.ring_attention(*[ring.shard(x, 2)] * 3, group=dist.new_group([rank])) if size == 1 else None
    want = attend.attention(x, x, x, causal=True)
    mine = ring.shard(x, 2, group=mesh["sequence"])
    for group in (mesh["sequence"], mesh["sequence"].get_group(), mesh["sequence"].get_group().group_name):
        o = ring.ring_attention(mine, mine, mine, group=group, causal=True)
        assert (o - ring.shard(want, 2, group=mesh["sequence"])).abs().max() <= 1e-5 and whole is None
    own = dist.new_group(list(range(size)))
    ring.connect(own, device, timeout=30)
    before = len(_contexts._of_groups)
    dist.destroy_process_group(own)
    del own
    assert len(_contexts._of_groups) == before - 1
    return torch.is_tensor(o)


def test_groups(ranks):
    assert all(ranks(4).run(run_groups))


class TestContextParallel:
    @staticmethod
    def run_model(rank, size, device, sharding):
        """Runs a small torch model without ring code. Its logits and gradients must equal those of the full problem."""
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.positions = nn.Embedding(50, 32), nn.Embedding(64, 32)
                self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 50)

            def forward(self, tokens, positions):
                x = self.tokens(tokens) + self.positions(positions)
                q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).movedim(2, 0).transpose(2, 3)
                o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.out(x + o.transpose(1, 2).flatten(2))

        torch.manual_seed(1)
        model = Model().to(device)
        tokens, labels = (torch.randint(50, (2, 40)).to(device) for _ in range(2))
        positions = torch.arange(40, device=device)
        logits = model(tokens, positions)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss.backward()
        want = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        before = [x.clone() for x in (tokens, labels, positions)]
        with ring.context_parallel(
            buffers=[tokens, labels, positions], buffer_seq_dims=[1, 1, 0], sharding=sharding,
            no_restore_buffers=[labels],
        ):  # fmt: skip
            assert tokens.shape[1] == len(positions) == len(ring.positions(40, rank=rank, size=size, sharding=sharding))
            mine = model(tokens, positions)
            its = nn.functional.cross_entropy(mine.flatten(0, 1), labels.flatten(), reduction="sum")
            its.backward(retain_graph=True)
            found = [p.grad.clone() for p in model.parameters()]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            its.backward()  # the positions have changed since the graph saved them
        assert torch.equal(tokens, before[0]) and torch.equal(positions, before[2])
        assert torch.equal(labels, ring.shard(before[1], 1, sharding=sharding))
        assert (mine - ring.shard(logits, 1, sharding=sharding)).abs().max() <= 1e-5
        for grad, its_grad in zip(want, found):
            torch.distributed.all_reduce(its_grad)
            assert (its_grad - grad).abs().max() <= 1e-4
        return True

    @pytest.mark.parametrize("sharding", ["zigzag", "contiguous", "striped"])
    def test_a_model_that_knows_nothing_of_rings(self, ranks, sharding):
        assert ranks(2).run(self.run_model, sharding) == [True, True]

    @staticmethod
    def run_compiled(rank, size, device):
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        x = normal(device, 1, 2, 16, 8)
        want = ring.shard(sdpa(x, x, x, is_causal=True), 2)
        mine = ring.shard(x, 2)
        compiled = torch.compile(lambda x: sdpa(x, x, x, is_causal=True) * 2, fullgraph=True)
        with ring.context_parallel():
            assert (compiled(mine) / 2 - want).abs().max() <= 1e-5
        return True

    def test_compiled(self, ranks):
        assert ranks(2).run(self.run_compiled) == [True, True]

    @staticmethod
    def run_refusals(rank, size, device):
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        x, texts = torch.zeros(2, 8, device=device), []
        needs_grad = torch.zeros(8, requires_grad=True)
        y = normal(device, 1, 2, 4, 8)
        for options in (
            dict(buffers=[x], buffer_seq_dims=[]),
            dict(buffers=[x], buffer_seq_dims=[2]),
            dict(buffers=[x, needs_grad], buffer_seq_dims=[1, 0]),
            dict(no_restore_buffers=[x]),
        ):
            try:
                with ring.context_parallel(**options):
                    pass
            except ValueError as error:
                texts.append(str(error))
            assert x.shape == (2, 8)
        with ring.context_parallel():
            for options in (dict(attn_mask=torch.ones(4, 4, dtype=torch.bool, device=device)), dict(is_causal=True)):
                try:
                    sdpa(y, y[:, :, :3], y[:, :, :3], **options)
                except NotImplementedError as error:
                    texts.append(str(error))
        return texts

    def test_what_it_refuses(self, ranks):
        texts = ranks(2).run(self.run_refusals)[0]
        assert [text.split(":")[0] for text in texts] == [
            "buffer_seq_dims", "dim", "buffers[1]", "no_restore_buffers", "attn_mask", "is_causal",
        ]  # fmt: skip
        assert not any("\n" in text for text in texts)


def run_counted(rank, size, device):
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = (normal(device, 1, 2, 6, 8).requires_grad_() for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        ring.ring_attention(q, k, v).sum().backward()
    return counter.get_total_flops()


def test_operations_are_counted(ranks):
    """A rank computes 6 rows and 12 keys, with two matrix products in forward and five in backward."""
    assert ranks(2).run(run_counted) == [7 * 2 * (2 * 6 * 12) * 8] * 2


def run_with_a_pretended_gpu(rank, size, device):
    """Pretends that tensors are on GPUs, and records which functions of the library are called."""
    import torch.distributed as dist
    from attend import _core
    from attend.ring import _contexts

    found, sound = [], (_core.make_nccl_id, _core.make_nccl_ring, _core.ring_agree)
    _core.make_nccl_id = lambda: bytes([rank]) * 128
    _core.make_nccl_ring = lambda *arguments: found.append(arguments)
    _core.ring_agree = lambda context, name, value: found.append(value)
    try:
        # The group does not contain rank 0 of the job. The NCCL id must come from rank 0 of the group.
        group = dist.new_group([1, 2, 3])
        if rank > 0:
            _contexts.of_group(group.group_name, 5)
            ring.connect(group, "cuda:1", timeout=7)
    finally:
        _core.make_nccl_id, _core.make_nccl_ring, _core.ring_agree = sound
    return found


def test_ranks_on_gpus_have_the_id_of_the_groups_first(ranks, ring_device):
    if ring_device == "cuda":
        pytest.skip("the calls of NCCL are pretended here")
    outcomes = ranks(4).run(run_with_a_pretended_gpu)
    made = bytes([1]) * 128
    assert outcomes[0] == []
    for rank in (1, 2, 3):
        # The ranks compare these texts in the ring that they use now.
        moves = ["one with tensors on cuda, for the first time"] * 2
        rings = [(made, rank - 1, 3, 5, 300.0, True), (made, rank - 1, 3, 1, 7, True)]
        assert outcomes[rank] == [moves[0], rings[0], moves[1], rings[1]]
