#include "ring/engine/engine.hpp"

#include "cpu/tiles.hpp"
#include "ring/engine/block.hpp"

namespace attend::ring {

Parcel parcel_of(const TensorSpecs& specs) {
  constexpr std::int64_t kAlignment = 256;
  Parcel parcel;
  std::int64_t at = 0, end = 0;
  for (const auto& [dtype, shape] : specs) {
    Tensor t = Tensor::bhsd<void>(nullptr, dtype, shape);
    t.data = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
    if (t.numel() > 0) end = at + t.numel() * dtype_bytes(dtype);
    at = cpu::round_up(end, kAlignment);
    parcel.tensors.push_back(t);
  }
  parcel.bytes = static_cast<std::size_t>(end);
  return parcel;
}

Parcel placed(const Parcel& parcel, std::byte* memory, Device device) {
  Parcel at = parcel;
  at.data = memory;
  for (Tensor& t : at.tensors) {
    t.data = memory + reinterpret_cast<std::uintptr_t>(t.data);
    t.device = device;
  }
  return at;
}

void prepare_adding(core::Problem& part, const Call& call, const Piece& piece) {
  part.as_part().adds_to_outputs = true;
  part.workspace = {};
  if (call.problem.dlse) part.dlse = rows_of(*call.problem.dlse, piece.rows.local_begin, piece.rows.length);
}

void set_gradients(core::Problem& part, const Piece& piece, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  part.dq = dq;
  part.dk = rows_of(dk, piece.keys.local_begin, piece.keys.length);
  part.dv = rows_of(dv, piece.keys.local_begin, piece.keys.length);
}

}  // namespace attend::ring
