#include "ring/engine/block.hpp"

#include <algorithm>
#include <cstring>

#include "core/elements.hpp"
#include "cpu/parallel.hpp"
#include "cpu/tiles.hpp"
#include "ring/engine/sum_type.hpp"

namespace attend::ring {
namespace {

/// Calls visit(batch, head, row) for every row. Each head of each batch entry is one task.
template <class Visit>
void for_each_row(const Shape& shape, Visit visit) {
  cpu::parallel_for(shape[0] * shape[1], cpu::max_threads(), [&](std::int64_t index) {
    for (std::int64_t row = 0; row < shape[2]; ++row) visit(index / shape[1], index % shape[1], row);
  });
}

template <class To, class From>
void accumulate_as(const Tensor& to, const Tensor& from) {
  for_each_row(to.shape, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    To* sum = static_cast<To*>(core::element(to, batch, head, row));
    const From* part = static_cast<const From*>(core::element(from, batch, head, row));
    for (std::int64_t c = 0; c < to.shape[3]; ++c) sum[c] += static_cast<To>(part[c]);
  });
}

}  // namespace

Tensor rows_of(const Tensor& t, std::int64_t begin, std::int64_t count) {
  Tensor view = t;
  if (count > 0) view.data = static_cast<std::byte*>(t.data) + begin * t.stride[2] * dtype_bytes(t.dtype);
  view.shape[2] = count;
  return view;
}

void accumulate(const Tensor& to, const Tensor& from) {
  with_sum_type(to.dtype, [&]<class To>(To) {
    with_sum_type(from.dtype, [&]<class From>(From) { accumulate_as<To, From>(to, from); });
  });
}

void convert(const Tensor& to, const Tensor& from) {
  const auto row_bytes = static_cast<std::size_t>(to.shape[3] * dtype_bytes(to.dtype));
  if (to.dtype == from.dtype) {
    for_each_row(to.shape, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
      std::memcpy(core::element(to, batch, head, row), core::element(from, batch, head, row), row_bytes);
    });
    return;
  }
  for_each_row(to.shape, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    for (std::int64_t c = 0; c < to.shape[3]; ++c) {
      core::store(to, batch, head, row, c, core::load(from, batch, head, row, c));
    }
  });
}

Pair Pair::of(DType first_dtype, const Shape& first_shape, DType second_dtype, const Shape& second_shape) {
  constexpr std::int64_t kAlignment = 64;  // alignment in bytes of the second tensor, sufficient for any dtype
  Pair pair = {Tensor::bhsd<void>(nullptr, first_dtype, first_shape),
               Tensor::bhsd<void>(nullptr, second_dtype, second_shape), 0};
  const std::int64_t second_at = cpu::round_up(pair.first.numel() * dtype_bytes(first_dtype), kAlignment);
  pair.bytes = static_cast<std::size_t>(second_at + pair.second.numel() * dtype_bytes(second_dtype));
  return pair;
}

Pair Pair::at(std::byte* memory, Device device) const {
  Pair pair = *this;
  const auto second_bytes = static_cast<std::size_t>(second.numel() * dtype_bytes(second.dtype));
  pair.first.device = pair.second.device = device;
  pair.first.data = memory;
  pair.second.data = memory + (bytes - second_bytes);
  return pair;
}

Block::Block(const Pair& pair)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(pair.bytes)), pair_(pair.at(memory_.get())) {}

void Block::zero() const {
  std::fill_n(memory_.get(), pair_.bytes, std::byte{0});
}

}  // namespace attend::ring
