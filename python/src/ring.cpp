// Python bindings of ring attention. The Python front ends (attend/ring) connect the ranks and pass the tensors. The
// library computes.
#include "ring.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "attend/ring.hpp"
#include "attend/ring_nccl.hpp"
#include "core/dtype_traits.hpp"
#include "cpu/parallel.hpp"
#include "ring/transport/agreement.hpp"
#include "ring/transport/transport.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;

Sharding sharding_of(const std::string& name) {
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
    if (name == sharding_name(sharding)) return sharding;
  }
  throw Error(ErrorCode::kInvalidArgument, "sharding: '" + name + "', allowed 'contiguous', 'zigzag', 'striped'");
}

/// The options of ring attention: the name of the sharding, the name of the algorithm, and RingParams::seed_of_rank_0.
using Spread = std::tuple<std::string, std::string, bool>;

RingParams ring_params_of(const Spread& spread) {
  const auto& [sharding, algorithm, seed_of_rank_0] = spread;
  for (const RingAlgorithm known : {RingAlgorithm::kAutomatic, RingAlgorithm::kExchange, RingAlgorithm::kAllGather,
                                    RingAlgorithm::kAllToAll, RingAlgorithm::kTwoLevel}) {
    if (algorithm != algorithm_name(known)) continue;
    RingParams params = {sharding_of(sharding), known};
    params.seed_of_rank_0 = seed_of_rank_0;
    return params;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "algorithm: '" + algorithm + "', allowed 'automatic', 'exchange', 'all_gather', 'all_to_all', 'two_level'");
}

/// A Python function that C++ threads can copy and call without holding the GIL. The last copy that is destroyed
/// acquires the GIL and releases the function.
class Function {
 public:
  explicit Function(nb::object function)
      : function_(new nb::object(std::move(function)), [](nb::object* held) {
          const nb::gil_scoped_acquire acquire;
          const nb::error_scope kept;  // keeps a pending exception, such as KeyboardInterrupt
          delete held;
        }) {}

  /// Calls the function. If it raises an exception derived from Exception, throws an Error (kInternal) with the text of
  /// the exception. For any other exception, such as KeyboardInterrupt, leaves the exception set in Python and throws
  /// cpu::Interrupted.
  template <class... Arguments>
  Function call(Arguments... arguments) const {
    const nb::gil_scoped_acquire acquire;
    try {
      return Function((*function_)(std::move(arguments)...));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) {
        error.restore();
        throw cpu::Interrupted();
      }
      std::string text = nb::cast<std::string>(nb::str(error.value()));
      std::ranges::replace(text, '\n', ' ');
      throw Error(ErrorCode::kInternal, text);
    }
  }

 private:
  std::shared_ptr<nb::object> function_;
};

/// Returns a memoryview of a message. The memory is valid while the message is in transfer. The caller must hold the
/// GIL.
nb::object memory_of(const std::byte* data, std::size_t bytes, int access) {
  auto* const address = reinterpret_cast<char*>(const_cast<std::byte*>(data));
  return nb::steal(PyMemoryView_FromMemory(address, static_cast<Py_ssize_t>(bytes), access));
}

nb::object read_only(std::span<const std::byte> bytes) {
  return memory_of(bytes.data(), bytes.size(), PyBUF_READ);
}

nb::object writable(std::span<std::byte> bytes) {
  return memory_of(bytes.data(), bytes.size(), PyBUF_WRITE);
}

/// Makes a ring context from Python callbacks. send(to, channel, memory) and receive(from, channel, memory) start a
/// transfer and return a function that waits for it. all_gather(mine, all) returns when all ranks have exchanged their
/// data.
RingContext callback_ring(int rank, int size, nb::object send, nb::object receive, nb::object all_gather,
                          nb::object fail) {
  const auto begin = [](const Function& function, int peer, int channel, auto bytes, auto* memory) {
    const nb::gil_scoped_acquire acquire;
    const Function wait = function.call(peer, channel, memory(bytes));
    return RingCallbacks::Wait([wait] { (void)wait.call(); });
  };
  RingCallbacks callbacks;
  callbacks.send = [begin, f = Function(std::move(send))](int to, int channel, std::span<const std::byte> bytes) {
    return begin(f, to, channel, bytes, &read_only);
  };
  callbacks.receive = [begin, f = Function(std::move(receive))](int from, int channel, std::span<std::byte> bytes) {
    return begin(f, from, channel, bytes, &writable);
  };
  callbacks.all_gather = [f = Function(std::move(all_gather))](std::span<const std::byte> mine,
                                                               std::span<std::byte> all) {
    const nb::gil_scoped_acquire acquire;
    (void)f.call(read_only(mine), writable(all));
  };
  callbacks.fail = [f = Function(std::move(fail))](const std::string& why) {
    const nb::gil_scoped_acquire acquire;
    const nb::error_scope kept;  // otherwise the Python call below would discard an exception that is already set
    (void)f.call(why);
  };
  return make_callback_ring(rank, size, std::move(callbacks));
}

nb::bytes nccl_id() {
  const NcclId id = make_nccl_id();
  return nb::bytes(id.bytes.data(), id.bytes.size());
}

RingContext nccl_ring(const nb::bytes& id, int rank, int size, int device, double timeout_s, bool copy_engines) {
  NcclId made = {};
  if (id.size() != made.bytes.size()) {
    throw Error(ErrorCode::kInvalidArgument, "id: " + std::to_string(id.size()) + " bytes, allowed those of an id");
  }
  std::memcpy(made.bytes.data(), id.c_str(), id.size());
  const nb::gil_scoped_release release;
  const auto timeout = std::chrono::milliseconds(std::llround(timeout_s * 1e3));
  return make_nccl_ring(made, rank, size, device, {.timeout = timeout, .copy_engines = copy_engines});
}

/// Returns the result of `make`. If `make` throws because the arguments of this rank are invalid, notifies the other
/// ranks. Without the notification, they would wait for this rank.
template <class Make>
auto told(const RingContext& context, Make make) {
  try {
    return make();
  } catch (const Error& error) {
    const nb::gil_scoped_release release;
    ring::refuse(context.transport(), error);
  } catch (const nb::python_error& error) {
    const std::string text = error.what();
    const nb::gil_scoped_release release;
    ring::refuse(context.transport(), Error(ErrorCode::kInvalidArgument, text.substr(0, text.find('\n'))));
  }
}

/// Notifies the other ranks that the front end of this rank refuses the call. `kind` is the name of the exception class
/// in attend/_errors.py.
void refuse(const RingContext& context, const std::string& kind, const std::string& text) {
  const ErrorCode code = kind == "ArgumentError"      ? ErrorCode::kInvalidArgument
                         : kind == "UnsupportedError" ? ErrorCode::kUnsupported
                                                      : ErrorCode::kInternal;
  const nb::gil_scoped_release release;
  ring::refuse(context.transport(), Error(code, text));
}

/// Waits for all ranks and checks that all of them pass the same `value` for `name`.
void agree(const RingContext& context, const std::string& name, const std::string& value) {
  const nb::gil_scoped_release release;
  (void)ring::agree_on_next_call(context.transport(), [&] { return ring::Fields{{name, value}}; });
}

/// Ends the current calls of all other ranks with an error. Every later call fails.
void fail(const RingContext& context, const std::string& why) {
  const nb::gil_scoped_release release;
  context.transport().fail(why);
}

void forward(const RingContext& context, const Spread& spread, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
             nb::handle lse, nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  const auto [call, ring_params] = told(
      context, [&] { return std::pair(Call(q, k, v, o, lse, nb::none(), extras, settings), ring_params_of(spread)); });
  const Views& x = call.x;
  const nb::gil_scoped_release release;
  ring_forward(context, x.q, x.k, x.v, x.o, call.lse(), call.params(), ring_params, reinterpret_cast<Stream>(stream));
}

void backward(const RingContext& context, const Spread& spread, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
              nb::handle lse, nb::handle gradients, nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  const auto [call, ring_params] = told(context, [&] {
    Call made(q, k, v, o, lse, gradients, extras, settings);
    made.check_dtypes_of_results();
    return std::pair(std::move(made), ring_params_of(spread));
  });
  const Views& x = call.x;
  const Gradients& g = call.gradients.value();
  const nb::gil_scoped_release release;
  ring_backward(context, g.dout, x.q, x.k, x.v, x.o, x.lse.value(), g.dq, g.dk, g.dv, call.params(), ring_params,
                reinterpret_cast<Stream>(stream),
                {.dlse = g.dlse, .dbias = g.of_options[core::tensor_index(ScoreMod::kBias)]});
}

DType dtype_of(const std::string& name) {
  if (const std::optional<DType> dtype = core::find_dtype(name); dtype && core::is_float(*dtype)) return *dtype;
  throw Error(ErrorCode::kInvalidArgument, "dtype: '" + name + "', allowed 'f32', 'f16', 'bf16', 'f64'");
}

nb::dict step_of(const RingStep& step) {
  nb::dict entry;
  entry["what"] = step.what;
  entry["sent_bytes"] = step.sent_bytes;
  entry["compute_us"] = step.compute_us;
  entry["exchange_us"] = step.exchange_us;
  entry["exposed_us"] = step.exposed_us;
  return entry;
}

/// Returns the explanation of a ring attention call. `q` is (batch, heads, tokens of all ranks, head_dim). `k` is
/// (batch, heads, tokens of all ranks, head_dim_v).
nb::list explain(int num_ranks, bool on_gpu, const std::string& dtype, const Shape& q, const Shape& k, bool is_backward,
                 bool causal, std::int64_t window_left, std::int64_t window_right, double dropout_p,
                 const Spread& spread) {
  const RingProblem problem = {.num_ranks = num_ranks,
                               .device = on_gpu ? DeviceType::kCUDA : DeviceType::kCPU,
                               .dtype = dtype_of(dtype),
                               .batch = q[0],
                               .num_heads_q = q[1],
                               .num_heads_k = k[1],
                               .seqlen_q = q[2],
                               .seqlen_k = k[2],
                               .head_dim = q[3],
                               .head_dim_v = k[3],
                               .is_backward = is_backward};
  const Params params = {
      .causal = causal, .window_left = window_left, .window_right = window_right, .dropout_p = dropout_p};
  nb::list list;
  for (const RingCandidate& c : explain_ring(problem, params, ring_params_of(spread))) {
    nb::dict entry;
    entry["algorithm"] = algorithm_name(c.algorithm);
    entry["chosen"] = c.chosen;
    entry["lack"] = c.lack;
    entry["why"] = c.why;
    nb::list steps;
    for (const RingStep& step : c.steps) steps.append(step_of(step));
    entry["steps"] = steps;
    entry["sent_bytes"] = c.sent_bytes;
    entry["memory_bytes"] = c.memory_bytes;
    entry["estimated_us"] = c.estimated_us;
    list.append(entry);
  }
  return list;
}

/// Returns the positions as the bytes of int64 values, because a list of Python integers would need much more memory.
nb::bytes positions(const std::string& sharding, std::int64_t seqlen, int rank, int num_ranks,
                    const std::vector<std::int32_t>& cu_seqlens) {
  const std::vector<std::int64_t> rows = shard_positions(sharding_of(sharding), seqlen, rank, num_ranks, cu_seqlens);
  return nb::bytes(rows.data(), rows.size() * sizeof(std::int64_t));
}

}  // namespace

void add_ring(nb::module_& m) {
  nb::class_<RingContext>(m, "RingContext")
      .def_prop_ro("rank", &RingContext::rank)
      .def_prop_ro("size", &RingContext::size);
  m.def("make_nccl_id", &nccl_id);
  m.def("make_nccl_ring", &nccl_ring, "id"_a, "rank"_a, "size"_a, "device"_a, "timeout_s"_a, "copy_engines"_a);
  m.def("make_callback_ring", &callback_ring, "rank"_a, "size"_a, "send"_a, "receive"_a, "all_gather"_a, "fail"_a);
  m.attr("RING_INTERRUPTED") = ring::kInterrupted;
  m.def("ring_refuse", &refuse, "context"_a, "kind"_a, "text"_a);
  m.def("ring_agree", &agree, "context"_a, "name"_a, "value"_a);
  m.def("ring_fail", &fail, "context"_a, "why"_a);
  m.def("ring_forward", &forward, "context"_a, "spread"_a, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "extras"_a,
        "settings"_a, "stream"_a);
  m.def("ring_backward", &backward, "context"_a, "spread"_a, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a,
        "extras"_a, "settings"_a, "stream"_a);
  m.def("explain_ring", &explain, "num_ranks"_a, "on_gpu"_a, "dtype"_a, "q"_a, "k"_a, "is_backward"_a, "causal"_a,
        "window_left"_a, "window_right"_a, "dropout_p"_a, "spread"_a);
  m.def("shard_positions", &positions, "sharding"_a, "seqlen"_a, "rank"_a, "num_ranks"_a, "cu_seqlens"_a);
}

}  // namespace attend::python
