"""Two small models run with attend.append and attend.decode, and are compared with the same models without a cache: by
their greedy tokens in float32, and by their logits in bfloat16. The step of one token is a sequence of ordinary calls
or, on a GPU, one captured CUDA graph. The graph is replayed for every token while lengths grow, sequences get new
pages, a page moves, and a sequence is dead for some steps.
"""

import math

import pytest

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import served_models
import torch as torch_here
from served_models import CONFIGS, MAX_POSITIONS, Model, prompts, truth

PROMPTS = (1, 19, 7, 33)  # number of tokens of each prompt
BATCH = len(PROMPTS)
STEPS = 20  # generated tokens of each sequence; the prefill computes the first
PAGE = 8
PAGES_OF_ROW = 8
CAPACITY = PAGE * PAGES_OF_ROW
DEAD, DEAD_FROM, DEAD_STEPS = 1, 6, 4  # index of a sequence, its first dead step, and the number of dead steps
MOVED, MOVED_AT = 3, 11  # index of a sequence, and the step before which its first page moves
FACTOR = 2  # allowed multiple of eager's bfloat16 error; attend rounds at most as often, but at other places
FLOAT32 = 2.0**-16  # allowed error relative to the largest logit, as in oracle.py


class Pages:
    """Assigns pages, in any order, to sequences as they grow, and updates the page table on the device."""

    def __init__(self, caches, table):
        self.caches, self.table = caches, table
        shuffled = torch_here.randperm(caches[0][0].shape[0], generator=torch_here.Generator().manual_seed(3))
        self.free = shuffled.tolist()
        self.of = [[] for _ in range(BATCH)]

    def make_room(self, s, tokens):
        """Assigns pages until `tokens` keys fit into the sequence. Returns whether it got a new page."""
        before = len(self.of[s])
        while len(self.of[s]) * PAGE < tokens:
            self.of[s].append(self.free.pop())
        self.write()
        return len(self.of[s]) > before

    def move_first(self, s):
        """Copies the sequence's first page to another page, and fills the old page with NaN."""
        old, new = self.of[s][0], self.free.pop()
        for cache in (x for pair in self.caches for x in pair):
            cache[new] = cache[old]
            cache[old] = math.nan
        self.of[s][0] = new
        self.write()

    def write(self):
        rows = [pages + [-1] * (PAGES_OF_ROW - len(pages)) for pages in self.of]
        self.table.copy_(torch_here.tensor(rows, dtype=torch_here.int32))


class Server:
    """A model with its caches. step() reads and writes tensors at fixed addresses."""

    def __init__(self, model, is_paged, in_one_call):
        c, device = model.config, model.device
        self.model, self.in_one_call = model, in_one_call
        blocks, rows = (BATCH * PAGES_OF_ROW + 3, PAGE) if is_paged else (BATCH + 2, CAPACITY)
        shape = (blocks, c.heads_k, rows, c.head_dim)
        self.caches = [
            tuple(torch_here.full(shape, math.nan, dtype=model.dtype, device=device) for _ in "kv") for _ in c.windows
        ]
        ints = {"dtype": torch_here.int32, "device": device}
        self.lengths = torch_here.zeros(BATCH, **ints)  # number of cached keys of each sequence; -1 means dead
        self.tokens = torch_here.zeros(BATCH, dtype=torch_here.int64, device=device)
        self.logits = torch_here.full((BATCH, c.vocabulary), math.nan, device=device)
        if is_paged:
            self.index = {"page_table": torch_here.full((BATCH, PAGES_OF_ROW), -1, **ints)}
        else:
            self.index = {"cache_batch_idx": torch_here.tensor([4, 0, 5, 2], **ints)}
        self.pages = Pages(self.caches, self.index["page_table"]) if is_paged else None
        self.rotary = attend.Rotary(model.cos, model.sin)

    def attention(self, number, q, k, v, lengths, counts, **packed):
        """Computes the attention of layer `number` for packed rows, or for (sequences, heads, 1, head_dim). `counts`
        contains the number of rows of each sequence.
        """
        c = self.model.config
        cache, new = self.caches[number], {"k": k, "v": v, "rotary": self.rotary}
        options = {"window": (c.windows[number] - 1, 0)} if c.windows[number] else {}
        if c.has_sinks:
            options["sinks"] = self.model.layers[number]["sinks"]
        of_new = {"cu_seqlens_new": packed["cu_seqlens_q"]} if packed else {}
        if self.in_one_call:
            return attend.decode(q, *cache, seqlens_k=lengths, **new, **of_new, **packed, **options, **self.index)
        q = attend.append(k, v, *cache, seqlens_k=lengths, rotary=self.rotary, q=q, **of_new, **packed, **self.index)
        after = lengths + counts * (lengths >= 0).int()
        return attend.decode(q, *cache, seqlens_k=after, **packed, **options, **self.index)

    def prefill(self, given):
        """Runs all prompts in one packed call. Stores their last logits and the first generated tokens."""
        if self.pages is not None:
            for s, prompt in enumerate(given):
                self.pages.make_room(s, len(prompt))
        counts = self.lengths.new_tensor([len(prompt) for prompt in given])
        offsets = torch_here.nn.functional.pad(counts.cumsum(0, dtype=torch_here.int32), (1, 0))
        rows = self.tokens.new_tensor([token for prompt in given for token in prompt])
        logits = self.model.logits(
            rows, lambda number, q, k, v: self.attention(number, q, k, v, self.lengths, counts, cu_seqlens_q=offsets)
        )
        self.lengths.copy_(counts)
        self.logits.copy_(logits[offsets[1:].long() - 1])
        self.tokens.copy_(self.logits.argmax(-1))

    def step(self):
        """Computes one token of each live sequence. The lengths advance on the device."""
        alive = self.lengths >= 0

        def attention(number, q, k, v):
            q, k, v = (x[:, :, None] for x in (q, k, v))
            return self.attention(number, q, k, v, self.lengths, 1)[:, :, 0]

        self.logits.copy_(self.model.logits(self.tokens, attention))
        self.tokens.copy_(torch_here.where(alive, self.logits.argmax(-1), self.tokens))
        self.lengths.add_(alive.int())

    def captured_step(self):
        """Captures step() as a graph. The warm-up runs with dead sequences, so it changes no cache and no token."""
        lengths, logits = self.lengths.clone(), self.logits.clone()
        self.lengths.fill_(-1)
        side = torch_here.cuda.Stream()
        side.wait_stream(torch_here.cuda.current_stream())
        with torch_here.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch_here.cuda.current_stream().wait_stream(side)
        graph = torch_here.cuda.CUDAGraph()
        with torch_here.cuda.graph(graph):
            self.step()
        self.lengths.copy_(lengths)
        self.logits.copy_(logits)
        self.graph = graph  # keeps the graph alive as long as the server
        return graph.replay


def generated(server, given, stepping, forced=None):
    """Returns STEPS tokens and logits for each sequence. If `forced` is given, its tokens replace the generated
    tokens.
    """
    server.prefill(given)
    tokens, logits = [[] for _ in given], [[] for _ in given]
    step = server.captured_step() if stepping == "graph" else server.step
    alive, at, pages_given = list(range(len(given))), 0, 0
    while True:
        now, of_now = server.tokens.tolist(), server.logits.cpu().double()
        assert of_now.isfinite().all()  # dead sequences also have finite logits, because their o is 0
        for s in alive:
            tokens[s].append(now[s])
            logits[s].append(of_now[s])
        done = [s for s in range(len(given)) if len(tokens[s]) == STEPS]
        if len(done) == len(given):
            break
        if forced is not None:
            server.tokens.copy_(torch_here.tensor([forced[s][len(tokens[s]) - 1] for s in range(len(given))]))
        alive = [s for s in range(len(given)) if s not in done
                 and not (s == DEAD and DEAD_FROM <= at < DEAD_FROM + DEAD_STEPS)]  # fmt: skip
        lengths = [len(given[s]) + len(tokens[s]) - 1 if s in alive else -1 for s in range(len(given))]
        if lengths != server.lengths.tolist():  # otherwise the device already has these lengths
            assert at in (DEAD_FROM, DEAD_FROM + DEAD_STEPS) or done
            server.lengths.copy_(torch_here.tensor(lengths, dtype=torch_here.int32))
        if server.pages is not None:
            pages_given += sum(server.pages.make_room(s, lengths[s] + 1) for s in alive)
            if at == MOVED_AT:
                server.pages.move_first(MOVED)
        server.logits.fill_(math.nan)
        step()
        at += 1
    assert server.pages is None or pages_given >= 2 * len(given)
    return tokens, logits


def served(config, dtype, device, cache, way, stepping, forced=None):
    if stepping == "graph" and device == "cpu":
        pytest.skip("a graph is of a GPU")
    with torch_here.no_grad():
        model = Model(config, dtype, device, rounded_to=dtype)
        server = Server(model, is_paged=cache == "paged", in_one_call=way == "one_call")
        return generated(server, prompts(config, PROMPTS), stepping, forced)


def largest_error(logits, wanted):
    return max((torch_here.stack(found) - want).abs().max().item() for found, (_, want) in zip(logits, wanted))


every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
every_way = pytest.mark.parametrize("way", ["one_call", "two_calls"])
every_cache = pytest.mark.parametrize("cache", ["paged", "dense"])
every_stepping = pytest.mark.parametrize("stepping", ["eager", "graph"])


@every_config
@every_cache
@every_way
@every_stepping
def test_greedy_tokens_in_float32(torch, device, config, cache, way, stepping):
    wanted = truth(config, torch.float32, PROMPTS, STEPS)
    tolerated = FLOAT32 * max(logits.abs().max().item() for _, logits in wanted)
    best = torch.cat([logits for _, logits in wanted]).topk(2).values
    gap = (best[:, 0] - best[:, 1]).min().item()
    assert gap > 2 * tolerated, "two tokens are so near that a tolerated error changes their order"
    tokens, logits = served(config, torch.float32, device, cache, way, stepping)
    assert tokens == [list(of_one) for of_one, _ in wanted]
    error = largest_error(logits, wanted)
    print(f"largest error of a logit {error:.2g}, tolerated {tolerated:.2g}, smallest gap of tokens {gap:.2g}")
    assert error <= tolerated


@every_config
@every_cache
@every_way
@every_stepping
def test_logits_in_bfloat16(torch, device, config, cache, way, stepping):
    """Each step gets the tokens of the reference model, so that the logits of all steps can be compared."""
    wanted = truth(config, torch.bfloat16, PROMPTS, STEPS)
    tolerated = FACTOR * served_models.eager_errors(config, torch.bfloat16, device, PROMPTS, STEPS)
    forced = [of_one for of_one, _ in wanted]
    _, logits = served(config, torch.bfloat16, device, cache, way, stepping, forced)
    error = largest_error(logits, wanted)
    print(f"largest error of a logit {error:.2g}, tolerated {tolerated:.2g}")
    assert error <= tolerated


@every_config
def test_a_wrong_attention_is_found_out(torch, config):
    """An attention that omits the first key, the sinks or the windows exceeds every tolerance above."""
    model = Model(config, torch.float64, rounded_to=torch.bfloat16)
    wanted = truth(config, torch.bfloat16, PROMPTS, STEPS)
    tolerated = FACTOR * served_models.eager_errors(config, torch.bfloat16, "cpu", PROMPTS, STEPS)
    for part in ("first", *(("sinks", "windows") if config.has_sinks else ())):
        for prompt, (tokens, logits) in zip(prompts(config, PROMPTS), wanted):
            found = served_models.whole_logits(model, [*prompt, *tokens[:-1]], without=(part,))[len(prompt) - 1 :]
            assert (found - logits).abs().max().item() > 2 * tolerated, part


def test_sequences_fit():
    assert max(PROMPTS) + STEPS <= CAPACITY <= MAX_POSITIONS
