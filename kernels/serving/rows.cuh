// Access to rows of tensors of any element type. Each lane accesses runs of kRowRun neighbouring columns. The element
// type is a run-time number that is equal in all lanes, so one kernel handles all types. If the tensor is aligned
// (runs_at_once), a run is one load or store. Otherwise columns are accessed one by one.
#pragma once

#include "../common/element.cuh"
#include "eight_bits.cuh"
#include "rows_args.cuh"

namespace attend {

// Neighbouring elements that one instruction loads or stores.
template <class Storage>
struct alignas(sizeof(Storage) * kRowRun) ElementRun {
  Storage elements[kRowRun];
};

// Returns the address of a row's first column.
[[nodiscard]] __device__ __forceinline__ char* row_address(const RowsArgs& t, int64 batch, int64 head, int64 row) {
  return static_cast<char*>(t.data) + t.stride.offset(batch, head, row) * stored_bytes(t.type());
}

// Returns element `at` of an array of weights or of a table.
[[nodiscard]] __device__ __forceinline__ float load_number(const void* data, StoredElement element, int64 at) {
  switch (element) {
    case StoredElement::kF16:
      return Float16::to_float(static_cast<const Bits16*>(data)[at]);
    case StoredElement::kBF16:
      return BFloat16::to_float(static_cast<const Bits16*>(data)[at]);
    case StoredElement::kF64:
      return __double2float_rn(static_cast<const double*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

// Starts to prefetch a row into the L1 cache. All lanes of a warp call it. PTX ISA, data movement and conversion:
// prefetch.
__device__ __forceinline__ void prefetch_row(const RowsArgs& t, const char* row, int cols) {
  constexpr int kLineBytes = 128;
  const int lane = static_cast<int>(threadIdx.x) % 32, bytes = cols * stored_bytes(t.type());
  for (int at = lane * kLineBytes; at < bytes; at += 32 * kLineBytes) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(row + at));
  }
}

// Loads the columns [col, col + kRowRun) of a row as floats. Columns from `cols` on are set to 0.
template <class Element>
__device__ __forceinline__ void load_run_of(float (&x)[kRowRun], const void* row, int col, int cols, bool at_once) {
  using Storage = typename Element::Storage;
  const Storage* from = static_cast<const Storage*>(row) + col;
  ElementRun<Storage> run = {};
  if (at_once) {
    if (col < cols) run = *reinterpret_cast<const ElementRun<Storage>*>(from);
  } else {
#pragma unroll
    for (int n = 0; n < kRowRun; ++n) {
      if (col + n < cols) run.elements[n] = from[n];
    }
  }
#pragma unroll
  for (int n = 0; n < kRowRun; ++n) x[n] = Element::to_float(run.elements[n]);
}

// Loads a run of a tensor of f32, f16 or bf16. See load_run_of().
__device__ __forceinline__ void load_run(float (&x)[kRowRun], const RowsArgs& t, const void* row, int col, int cols) {
  const bool at_once = t.runs_at_once != 0;
  if (t.type() == StoredElement::kF32) return load_run_of<Float32>(x, row, col, cols, at_once);
  if (t.type() == StoredElement::kF16) return load_run_of<Float16>(x, row, col, cols, at_once);
  load_run_of<BFloat16>(x, row, col, cols, at_once);
}

template <class Element>
__device__ __forceinline__ void store_run_of(const float (&x)[kRowRun], void* row, int col, int cols, bool at_once) {
  using Storage = typename Element::Storage;
  Storage* to = static_cast<Storage*>(row) + col;
  ElementRun<Storage> run;
#pragma unroll
  for (int n = 0; n < kRowRun; ++n) run.elements[n] = Element::round(x[n]);
  if (at_once) {
    if (col < cols) *reinterpret_cast<ElementRun<Storage>*>(to) = run;
    return;
  }
#pragma unroll
  for (int n = 0; n < kRowRun; ++n) {
    if (col + n < cols) to[n] = run.elements[n];
  }
}

// Stores a run to a tensor of f32, f16 or bf16.
__device__ __forceinline__ void store_run(const float (&x)[kRowRun], const RowsArgs& t, void* row, int col, int cols) {
  const bool at_once = t.runs_at_once != 0;
  if (t.type() == StoredElement::kF32) return store_run_of<Float32>(x, row, col, cols, at_once);
  if (t.type() == StoredElement::kF16) return store_run_of<Float16>(x, row, col, cols, at_once);
  store_run_of<BFloat16>(x, row, col, cols, at_once);
}

// Loads a row of f32, f16 or bf16 as floats into shared memory. The memory at `to` must have room for a complete last
// run. All lanes of a warp call it.
template <class Element>
__device__ __forceinline__ void load_row_of(float* to, const void* row, int cols, bool at_once) {
  using Storage = typename Element::Storage;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (at_once) {
#pragma unroll 4
    for (int col = lane * kRowRun; col < cols; col += 32 * kRowRun) {
      const auto run = *reinterpret_cast<const ElementRun<Storage>*>(static_cast<const Storage*>(row) + col);
      *reinterpret_cast<float4*>(to + col) =
          make_float4(Element::to_float(run.elements[0]), Element::to_float(run.elements[1]),
                      Element::to_float(run.elements[2]), Element::to_float(run.elements[3]));
    }
    return;
  }
#pragma unroll 2
  for (int col = lane; col < cols; col += 32) to[col] = Element::to_float(static_cast<const Storage*>(row)[col]);
}

__device__ __forceinline__ void load_row(float* to, const RowsArgs& t, const void* row, int cols) {
  const bool at_once = t.runs_at_once != 0;
  if (t.type() == StoredElement::kF32) return load_row_of<Float32>(to, row, cols, at_once);
  if (t.type() == StoredElement::kF16) return load_row_of<Float16>(to, row, cols, at_once);
  load_row_of<BFloat16>(to, row, cols, at_once);
}

// Stores floats from shared memory as a row. An 8-bit element is x / descale, rounded.
template <class Element, bool kHasDescale = false>
__device__ __forceinline__ void store_row_of(void* row, const float* from, int cols, bool at_once,
                                             float descale = 1.0f) {
  using Storage = typename Element::Storage;
  const auto rounded = [descale](float x) { return Element::round(kHasDescale ? __fdiv_rn(x, descale) : x); };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (at_once) {
#pragma unroll 1
    for (int col = lane * kRowRun; col < cols; col += 32 * kRowRun) {
      const float4 x = *reinterpret_cast<const float4*>(from + col);
      *reinterpret_cast<ElementRun<Storage>*>(static_cast<Storage*>(row) +
                                              col) = {{rounded(x.x), rounded(x.y), rounded(x.z), rounded(x.w)}};
    }
    return;
  }
#pragma unroll 1
  for (int col = lane; col < cols; col += 32) static_cast<Storage*>(row)[col] = rounded(from[col]);
}

__device__ __forceinline__ void store_row(const RowsArgs& t, void* row, const float* from, int cols, float descale) {
  const bool at_once = t.runs_at_once != 0;
  if (t.type() == StoredElement::kF32) return store_row_of<Float32>(row, from, cols, at_once);
  if (t.type() == StoredElement::kF16) return store_row_of<Float16>(row, from, cols, at_once);
  if (t.type() == StoredElement::kBF16) return store_row_of<BFloat16>(row, from, cols, at_once);
  if (t.type() == StoredElement::kI8) return store_row_of<Int8, true>(row, from, cols, at_once, descale);
  store_row_of<Float8E4M3, true>(row, from, cols, at_once, descale);
}

// Copies a row without conversion.
template <class Storage>
__device__ __forceinline__ void copy_row_of(void* to, const void* from, int cols, bool at_once) {
  using Run = ElementRun<Storage>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (at_once) {
#pragma unroll 1
    for (int run = lane; run < cols / kRowRun; run += 32)
      static_cast<Run*>(to)[run] = static_cast<const Run*>(from)[run];
    return;
  }
#pragma unroll 1
  for (int col = lane; col < cols; col += 32) {
    static_cast<Storage*>(to)[col] = static_cast<const Storage*>(from)[col];
  }
}

// Copies a row between tensors of the same 16-bit or 32-bit type.
__device__ __forceinline__ void copy_row(const RowsArgs& to, void* to_row, const RowsArgs& from, const void* from_row,
                                         int cols) {
  const bool at_once = (to.runs_at_once & from.runs_at_once) != 0;
  if (to.type() == StoredElement::kF32) return copy_row_of<uint32>(to_row, from_row, cols, at_once);
  copy_row_of<Bits16>(to_row, from_row, cols, at_once);
}

}  // namespace attend
