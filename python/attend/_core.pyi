from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Optional, TypeAlias, TypedDict

# attend._settings defines these named tuples, with the field names that this module provides.
Extras: TypeAlias = tuple[Any, ...]
Settings: TypeAlias = tuple[Any, ...]
Gradients: TypeAlias = tuple[Any, ...]

__version__: str

class Array:
    """The library's description of a strided array: address, dtype, device, shape and strides."""

    @staticmethod
    def of(object: Any, dtype: str = "") -> Array: ...
    @staticmethod
    def at(
        owner: Any, address: int, dtype: str, cuda_index: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Array: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def cuda_index(self) -> int: ...

class Backend(TypedDict):
    name: str
    description: str
    device: str
    has_backward: bool
    aliases: list[str]

class TensorOption(TypedDict):
    """An option that takes a tensor."""

    name: str
    shape: str  # "scores": an entry for each row and key; "heads": (heads_q) or (batch, heads_q)
    dtype: Optional[str]  # the only allowed dtype, or None for any float dtype
    gradient: Optional[str]  # name of the gradient in GRADIENTS_FIELDS, or None if there is no gradient
    flag: str  # flag of the command `attend info --explain`
    of_single_scores: bool  # whether the option acts on each score independently of the other scores of its row

class Gpu(TypedDict):
    name: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    lack: Optional[str]
    backends: list[str]

class Memory(TypedDict):
    used: int
    peak: int
    reserved: int
    reserved_peak: int

class CacheTotals(TypedDict):
    files: int
    bytes: int

class CachedKernel(CacheTotals):
    name: str
    arch: str
    last_used: float

class CacheInfo(CacheTotals):
    folder: Optional[str]
    limit_bytes: Optional[int]
    kernels: list[CachedKernel]

EXTRAS_FIELDS: tuple[str, ...]
SETTINGS_FIELDS: tuple[str, ...]
GRADIENTS_FIELDS: tuple[str, ...]
TENSOR_OPTIONS: tuple[TensorOption, ...]  # in the order of EXTRAS_FIELDS, which begin with these

def has_exchange_table(object: Any, /) -> bool: ...

# q, k, v, o, lse and the tensors in the named tuples are Arrays, or tensors whose type has DLPack's C exchange table.
def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, extras: Extras, settings: Settings, stream: int, /) -> None: ...
def backward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    gradients: Gradients,
    extras: Extras,
    settings: Settings,
    stream: int,
    /,
) -> None: ...

# Custom scores and masks.
class ScoreFunction:
    def __init__(self, text: str, names: tuple[str, ...], arrays: tuple[Any, ...], /) -> None: ...
    def with_arrays(self, names: tuple[str, ...], arrays: tuple[Any, ...], /) -> ScoreFunction: ...
    def without_arrays(self) -> ScoreFunction: ...

class BlockMask:
    @property
    def shape(self) -> tuple[int, int, int, int]: ...
    @property
    def tiles(self) -> dict[str, int]: ...
    @property
    def density(self) -> float: ...
    @property
    def nbytes(self) -> int: ...
    def __copy__(self) -> BlockMask: ...
    def __deepcopy__(self, memo: Any, /) -> BlockMask: ...
    def sees(self, batch: int, head: int, row: int, key: int) -> bool: ...

def make_block_mask(
    text: str, names: tuple[str, ...], arrays: tuple[Any, ...], batch: int, num_heads: int, seqlen_q: int,
    seqlen_k: int, gpu: int, stream: int, /,
) -> BlockMask: ...  # fmt: skip
def forward_with_own(
    function: Optional[ScoreFunction], block_mask: Optional[BlockMask], q: Any,
    k: Any, v: Any, o: Any, lse: Any, extras: Extras, settings: Settings, stream: int, /,
) -> None: ...  # fmt: skip
def backward_with_own(
    function: Optional[ScoreFunction], block_mask: Optional[BlockMask], names: tuple[str, ...], arrays: tuple[Any, ...],
    q: Any, k: Any, v: Any, o: Any, lse: Any, gradients: Gradients, extras: Extras, settings: Settings, stream: int, /,
) -> None: ...  # fmt: skip
def prepare_backward_with_own(
    function: Optional[ScoreFunction], block_mask: Optional[BlockMask], names: tuple[str, ...], arrays: tuple[Any, ...],
    q: Any, k: Any, v: Any, o: Any, lse: Any, gradients: Gradients, extras: Extras, settings: Settings, /,
) -> None: ...  # fmt: skip

# Serving. attend._serving defines the named tuples. Their tensors are Arrays, or tensors with the exchange table.
SERVING_TENSORS: tuple[str, ...]
SERVING_NUMBERS: tuple[str, ...]

def decode(tensors: tuple[Any, ...], numbers: tuple[Any, ...], stream: int, /) -> None: ...
def append(tensors: tuple[Any, ...], numbers: tuple[Any, ...], stream: int, /) -> None: ...
def merge(
    states: Sequence[tuple[Any, Any]], o: Any, lse: Any, sinks: Any, layout: str, lse_base2: bool, stream: int, /
) -> None: ...
def check_decode(tensors: tuple[Any, ...], numbers: tuple[Any, ...], /) -> None: ...
def check_append(tensors: tuple[Any, ...], numbers: tuple[Any, ...], /) -> None: ...
def check_merge(
    states: Sequence[tuple[Any, Any]], o: Any, lse: Any, sinks: Any, layout: str, lse_base2: bool, /
) -> None: ...
def check_settings(settings: Settings) -> None: ...
def check(
    q: Any, k: Any, v: Any, o: Any, lse: Any, gradients: Optional[Gradients], extras: Extras, settings: Settings, /
) -> None: ...
def explain(
    q: Any, k: Any, v: Any, o: Any, lse: Any, gradients: Optional[Gradients], extras: Extras, settings: Settings, /
) -> list[dict[str, Any]]: ...
def workspace_bytes(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Optional[Any],
    gradients: Optional[Gradients],
    extras: Extras,
    settings: Settings,
    /,
) -> int: ...

# {"forward": {platform: one capsule, or one for each stage}, ...}
def xla_handlers() -> dict[str, dict[str, Any]]: ...
def prepare(
    q: Any, k: Any, v: Any, o: Any, lse: Any, gradients: Optional[Gradients], extras: Extras, settings: Settings, /
) -> None: ...

# Calls with torch tensors. They return None if the direct route does not support the arguments
# (python/src/torch_route.hpp).
def learn_defaults(defaults: dict[str, Any], /) -> None: ...
def learn_torch(names: dict[str, Any], /) -> None: ...
def route_of(heads: tuple[Any, ...], others: tuple[Any, ...], /) -> tuple[bool, bool, bool]: ...
def attention_of_options(q: Any, k: Any, v: Any, options: tuple[Any, ...], return_lse: Any) -> Any: ...
def attention_qkvpacked_of_options(qkv: Any, options: tuple[Any, ...], return_lse: Any) -> Any: ...
def direct_attention(q: Any, k: Any, v: Any, extras: Extras, settings: Settings, return_lse: Any) -> Any: ...
def direct_attention_qkvpacked(qkv: Any, settings: Settings, return_lse: Any) -> Any: ...
def learn_decode(defaults: dict[str, Any], /) -> None: ...
def learn_append(defaults: dict[str, Any], /) -> None: ...
def decode_of_options(q: Any, k_cache: Any, v_cache: Any, options: tuple[Any, ...]) -> Any: ...
def append_of_options(k: Any, v: Any, k_cache: Any, v_cache: Any, options: tuple[Any, ...]) -> Optional[tuple[Any]]: ...

# The forward and backward passes of the autograd functions in attend.torch._autograd.
def attention_forward(
    context: Any, q: Any, k: Any, v: Any, settings: Settings, return_lse: bool, extras: Any = None, *options: Any
) -> Any: ...
def attention_backward(context: Any, dout: Any, dlse: Any = None) -> Any: ...
def packed_forward(context: Any, qkv: Any, settings: Settings, return_lse: bool, /) -> Any: ...
def packed_backward(context: Any, dout: Any, dlse: Any = None) -> Any: ...
def cuda_empty(shape: Sequence[int], dtype: str, bytes: int, index: int, stream: int, stream_owner: Any, /) -> Any: ...
def synchronize(index: int, stream: int, /) -> None: ...
def order_streams(index: int, first: int, second: int, /) -> None: ...
def backends() -> list[Backend]: ...
def memory(index: int, reset: bool) -> Memory: ...
def gpus() -> list[Gpu]: ...
def cache_info() -> CacheInfo: ...
def cache_clear() -> CacheTotals: ...
def cache_text(limit_alone: bool, /) -> str: ...
def libraries() -> dict[str, dict[str, str]]: ...
def kernel_digest() -> str: ...
def scaled_softmax(
    in_: int,
    p: int,
    out: int,
    dtype: str,
    shape: tuple[int, ...],
    scale: float,
    causal: bool,
    index: int,
    stream: int,
) -> None: ...

class RingContext:
    """One rank of a ring."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

def make_nccl_id() -> bytes: ...
def make_nccl_ring(
    id: bytes, rank: int, size: int, device: int, timeout_s: float, copy_engines: bool
) -> RingContext: ...

# The arguments of send and receive are (rank, channel, memory), and they return a function that waits for the transfer.
# The arguments of all_gather are (memory of this rank's data, memory of all ranks' data).
def make_callback_ring(
    rank: int,
    size: int,
    send: Callable[[int, int, memoryview], Callable[[], object]],
    receive: Callable[[int, int, memoryview], Callable[[], object]],
    all_gather: Callable[[memoryview, memoryview], object],
    fail: Callable[[str], object],
) -> RingContext: ...

RING_INTERRUPTED: str  # the error text of a rank whose call was interrupted by a signal

# A rank calls one of these functions in place of a collective call.
def ring_refuse(context: RingContext, kind: str, text: str) -> NoReturn: ...
def ring_agree(context: RingContext, name: str, value: str) -> None: ...
def ring_fail(context: RingContext, why: str) -> None: ...

# The argument `spread` contains the names of the sharding and of the algorithm, and whether the seed of rank 0 is used.
def ring_forward(
    context: RingContext,
    spread: tuple[str, str, bool],
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    extras: Extras,
    settings: Settings,
    stream: int,
) -> None: ...
def ring_backward(
    context: RingContext,
    spread: tuple[str, str, bool],
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    gradients: Gradients,
    extras: Extras,
    settings: Settings,
    stream: int,
) -> None: ...
def explain_ring(
    num_ranks: int,
    on_gpu: bool,
    dtype: str,
    q: Sequence[int],
    k: Sequence[int],
    is_backward: bool,
    causal: bool,
    window_left: int,
    window_right: int,
    dropout_p: float,
    spread: tuple[str, str, bool],
) -> list[dict[str, Any]]: ...
def shard_positions(sharding: str, seqlen: int, rank: int, num_ranks: int, cu_seqlens: Sequence[int]) -> bytes: ...
def cpu_threads() -> int: ...
def set_cpu_threads(threads: int) -> None: ...
def cpu_simd_target() -> str: ...
def cpu_bf16_unit() -> str: ...
def cpu_peak_gflops(threads: int) -> dict[str, float]: ...
def source_digests() -> dict[str, str]: ...
