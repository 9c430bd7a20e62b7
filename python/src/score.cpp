#include "score.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "attend/block_mask.hpp"
#include "attend/score_function.hpp"
#include "core/dtype_traits.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;

DType element_type(const std::string& dtype) {
  if (const std::optional<DType> found = core::find_dtype(dtype)) return *found;
  throw Error(ErrorCode::kInvalidArgument, "dtype " + dtype + ", allowed f32, f16, bf16, f64, i32, i64, bool");
}

StridedTensor strided_view(const Array& a) {
  return {.data = a.data,
          .dtype = element_type(a.dtype),
          .shape = {a.shape.begin(), a.shape.begin() + a.num_dims},
          .stride = {a.stride.begin(), a.stride.begin() + a.num_dims},
          .device = a.device};
}

StridedTensor named_view(const std::string& name, nb::handle array) {
  try {
    const Array a = Array::view(array);
    for (int d = 0; d < a.num_dims; ++d) {
      // Refuses an empty tensor here. Such a tensor may have a null address, and the library would report the address
      // instead of the size.
      if (a.shape[d] == 0) throw Error(ErrorCode::kInvalidArgument, "extent 0, allowed 1 to 2147483647");
    }
    return strided_view(a);
  } catch (const Error& error) {
    throw Error(error.code(), "captures: '" + name + "': " + error.what());
  }
}

std::vector<ScoreCapture> captures_of(const nb::tuple& names, const nb::tuple& arrays) {
  std::vector<ScoreCapture> captures;
  for (std::size_t n = 0; n < nb::len(names); ++n) {
    const auto name = nb::cast<std::string>(names[n]);
    captures.push_back({name, named_view(name, arrays[n])});
  }
  return captures;
}

/// A score function together with the arrays that it reads. `arrays` keeps them alive, because some of them are copies
/// that nobody else owns.
struct HeldFunction {
  ScoreFunction function;
  nb::object arrays;
};

void make(HeldFunction* place, const std::string& text, const nb::tuple& names, const nb::tuple& arrays) {
  new (place) HeldFunction{ScoreFunction(text, captures_of(names, arrays)), arrays};
}

HeldFunction with(const HeldFunction& held, const nb::tuple& names, const nb::tuple& arrays) {
  return {held.function.with(captures_of(names, arrays)), arrays};
}

/// Returns a copy without arrays. Only with_arrays may be called on this copy.
HeldFunction without(const HeldFunction& held) {
  return {held.function, nb::none()};
}

/// Makes a block mask on the GPU with the index `gpu`. If `gpu` is negative, makes it on the CPU.
BlockMask make_mask(const std::string& text, const nb::tuple& names, const nb::tuple& arrays, std::int64_t batch,
                    std::int64_t num_heads, std::int64_t seqlen_q, std::int64_t seqlen_k, int gpu,
                    std::uintptr_t stream) {
  const MaskFunction function(text, captures_of(names, arrays));
  const nb::gil_scoped_release release;
  BlockMaskPlace place;
  if (gpu >= 0) place = {{DeviceType::kCUDA, gpu}, reinterpret_cast<Stream>(stream)};
  return make_block_mask(function, {batch, num_heads, seqlen_q, seqlen_k}, place);
}

void set_own(Params& params, const HeldFunction* held, const BlockMask* mask) {
  if (held != nullptr) params.score = &held->function;
  params.block_mask = mask;
}

/// Runs forward with a score function, a block mask, or both.
void forward(const HeldFunction* held, const BlockMask* mask, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
             nb::handle lse, nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  const Call arguments(q, k, v, o, lse, nb::none(), extras, settings);
  ForwardCall call = arguments.forward(reinterpret_cast<Stream>(stream));
  set_own(call.params, held, mask);
  const nb::gil_scoped_release release;
  attend::forward(call);
}

/// The arguments of a backward call and the call itself. backward() and its preparation share this class. An object
/// cannot be moved, because `call` points to `arguments`.
struct BackwardWithOwn {
  Call arguments;
  BackwardCall call;

  /// @param names   names of the captures whose gradients are requested
  /// @param arrays  arrays for these gradients
  BackwardWithOwn(const HeldFunction* held, const BlockMask* mask, const nb::tuple& names, const nb::tuple& arrays,
                  Call those, std::uintptr_t stream)
      : arguments(std::move(those)), call(arguments.backward(reinterpret_cast<Stream>(stream))) {
    arguments.check_dtypes_of_results();
    set_own(call.params, held, mask);
    for (std::size_t n = 0; n < nb::len(names); ++n) {
      const auto name = nb::cast<std::string>(names[n]);
      call.captures.push_back({name, named_view(name, arrays[n])});
    }
  }
  BackwardWithOwn(const BackwardWithOwn&) = delete;
  BackwardWithOwn& operator=(const BackwardWithOwn&) = delete;
};

void backward(const HeldFunction* held, const BlockMask* mask, const nb::tuple& names, const nb::tuple& arrays,
              nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse, nb::handle gradients,
              nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  const BackwardWithOwn own(held, mask, names, arrays, {q, k, v, o, lse, gradients, extras, settings}, stream);
  const nb::gil_scoped_release release;
  attend::backward(own.call);
}

/// Compiles and loads the kernels for a backward call with these arguments. Reads no tensor memory, so the arrays need
/// only addresses.
void prepare_backward(const HeldFunction* held, const BlockMask* mask, const nb::tuple& names, const nb::tuple& arrays,
                      nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse, nb::handle gradients,
                      nb::handle extras, nb::handle settings) {
  const BackwardWithOwn own(held, mask, names, arrays, {q, k, v, o, lse, gradients, extras, settings}, 0);
  const nb::gil_scoped_release release;
  plan(own.call).prepare();
}

}  // namespace

void add_score(nb::module_& m) {
  nb::class_<HeldFunction>(m, "ScoreFunction")
      .def("__init__", &make, "text"_a, "names"_a, "arrays"_a)
      .def("with_arrays", &with, "names"_a, "arrays"_a)
      .def("without_arrays", &without);
  nb::class_<BlockMask>(
      m, "BlockMask",
      "States which keys each row sees, in tiles of 64 rows and 64 keys. `make_block_mask` returns it. It is "
      "immutable and keeps no reference to captured tensors.")
      .def_prop_ro(
          "shape",
          [](const BlockMask& mask) {
            const BlockMaskShape s = mask.shape();
            return nb::make_tuple(s.batch, s.num_heads, s.seqlen_q, s.seqlen_k);
          },
          "(batch, num_heads, seqlen_q, seqlen_k). batch is 1 if the text does not read b; num_heads is 1 if the text "
          "does not read h.")
      .def_prop_ro(
          "tiles",
          [](const BlockMask& mask) {
            const BlockMask::Tiles t = mask.tiles();
            nb::dict tiles;
            tiles["all"] = t.all, tiles["full"] = t.full, tiles["partial"] = t.partial;
            tiles["patterns"] = t.patterns;
            return tiles;
          },
          "Numbers of tiles: all, full (every pair is seen), partial (some pairs are seen), and patterns (distinct "
          "partial tiles).")
      .def_prop_ro("density", &BlockMask::density,
                   "Fraction of all pairs that are seen, from 0 to 1; 1 if there are no pairs.")
      .def_prop_ro("nbytes", &BlockMask::bytes, "Size in bytes.")
      .def("__copy__", [](const BlockMask& mask) { return mask; })
      .def("__deepcopy__", [](const BlockMask& mask, nb::handle /*memo*/) { return mask; })
      .def("sees", &BlockMask::sees, "batch"_a, "head"_a, "row"_a, "key"_a,
           "Returns whether the row sees the key. Raises ArgumentError for an index outside `shape`.");
  m.def("make_block_mask", &make_mask);
  m.def("forward_with_own", &forward, "function"_a.none(), "block_mask"_a.none(), "q"_a, "k"_a, "v"_a, "o"_a,
        "lse"_a.none(), "extras"_a, "settings"_a, "stream"_a);
  m.def("backward_with_own", &backward, "function"_a.none(), "block_mask"_a.none(), "names"_a, "arrays"_a, "q"_a, "k"_a,
        "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a, "stream"_a);
  m.def("prepare_backward_with_own", &prepare_backward, "function"_a.none(), "block_mask"_a.none(), "names"_a,
        "arrays"_a, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a, "extras"_a, "settings"_a);
}

}  // namespace attend::python
