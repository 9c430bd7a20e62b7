// Emulates the PTX instructions in the kernels' asm statements. Each instruction is a function ptx_<name>(results...,
// operands...). The text of a kernel is rewritten to call these functions (emulated_kernel.cpp).
#pragma once

#include "cuda_words.hpp"
#include "float_formats.hpp"
#include "late_arrays.hpp"

namespace emulated {

inline LateArrays late_arrays;
inline void put_late_arrays(const void* LateArray::*what) {
  for (std::size_t n = 0; n < late_arrays.count; ++n) {
    const LateArray& array = late_arrays.first[n];
    std::memcpy(array.at, array.*what, array.bytes);
  }
}

inline char* at_smem(unsigned address) {
  return attend::smem + address;
}
template <class T>
T load(const void* from) {
  T x;
  std::memcpy(&x, from, sizeof(T));
  return x;
}
template <class T>
void store(void* to, T x) {
  std::memcpy(to, &x, sizeof(T));
}

/// Multiplies a 16 x 16 matrix by a 16 x 8 matrix. Each lane gets four elements of the product.
template <float (*kToFloat)(unsigned short)>
void mma(float& d0, float& d1, float& d2, float& d3, const unsigned (&a)[4], const unsigned (&b)[2],
         const float (&c)[4]) {
  struct Registers {
    unsigned a[4], b[2];
  };
  const Registers own = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const auto* all = exchange(own);
  const int lane = block->lane();
  // Each lane needs two rows of A and two columns of B.
  float rows[2][16], columns[2][16];
  for (int i = 0; i < 4; ++i) {
    const auto of_row = words_of<Registers>(all, lane / 4 * 4 + i);
    for (int r = 0; r < 4; ++r) {
      for (int half = 0; half < 2; ++half) {
        rows[r % 2][r / 2 * 8 + i * 2 + half] = kToFloat(static_cast<unsigned short>(of_row.a[r] >> half * 16));
      }
    }
    for (int column = 0; column < 2; ++column) {
      const auto of_column = words_of<Registers>(all, (lane % 4 * 2 + column) * 4 + i);
      for (int half = 0; half < 4; ++half) {
        columns[column][half / 2 * 8 + i * 2 + half % 2] =
            kToFloat(static_cast<unsigned short>(of_column.b[half / 2] >> half % 2 * 16));
      }
    }
  }
  float sums[4] = {c[0], c[1], c[2], c[3]};
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) sums[i] += rows[i / 2][k] * columns[i % 2][k];
  }
  d0 = sums[0], d1 = sums[1], d2 = sums[2], d3 = sums[3];
}

[[noreturn]] inline void unsupported(const char* name) {
  std::fprintf(stderr, "emulated kernel: no instruction %s\n", name);
  std::abort();
}

// Describes a tensor (columns, rows, heads, batch). A box is the rectangle that one copy loads. A box has several rows,
// each with 128 bytes of columns.
struct TensorMap {
  const char* data;
  std::int64_t stride[3];  // strides in bytes of rows, heads and batch entries
  std::int64_t size[3];
  std::int64_t element_bytes, row_bytes, box_rows;
  std::int64_t panels;  // number of panels, each of 64 columns, that a five-dimensional copy loads
};

inline int box_bytes(const void* map) {
  return static_cast<int>(load<TensorMap>(static_cast<const char*>(map)).box_rows) * 128;
}
inline int panels_of(const void* map) {
  return static_cast<int>(load<TensorMap>(static_cast<const char*>(map)).panels);
}

// Copies a box from shared memory to the tensor. Elements outside the tensor are skipped.
inline void take_box(const void* map, int column, int row, int head, int batch, unsigned from) {
  constexpr int kChunk = 16, kRow = 128;
  const auto tensor = load<TensorMap>(static_cast<const char*>(map));
  for (int r = 0; r < tensor.box_rows; ++r) {
    if (row + r >= tensor.size[0] || head >= tensor.size[1] || batch >= tensor.size[2]) continue;
    char* to = const_cast<char*>(tensor.data) + (row + r) * tensor.stride[0] + head * tensor.stride[1] +
               batch * tensor.stride[2] + column * tensor.element_bytes;
    for (unsigned chunk = 0; chunk < kRow / kChunk; ++chunk) {
      if (column * tensor.element_bytes + (chunk + 1) * kChunk > tensor.row_bytes) break;
      const unsigned at = from + static_cast<unsigned>(r) * kRow + chunk * kChunk;
      std::memcpy(to + chunk * kChunk, at_smem(at ^ (at / kRow % 8 * kChunk)), kChunk);
    }
  }
}

// Copies a box from the tensor to shared memory. Elements outside the tensor become zeros. Chunks of 16 bytes are
// stored in the order of the 128-byte swizzle.
inline void bring_box(unsigned to, const void* map, int column, int row, int head, int batch) {
  constexpr int kChunk = 16, kRow = 128;
  const auto tensor = load<TensorMap>(static_cast<const char*>(map));
  if (to % 1024 != 0 && tensor.box_rows % 8 != 0) unsupported("a box that begins inside of the swizzle's pattern");
  for (int r = 0; r < tensor.box_rows; ++r) {
    const bool exists = row + r < tensor.size[0] && head < tensor.size[1] && batch < tensor.size[2];
    const char* from = tensor.data + (row + r) * tensor.stride[0] + head * tensor.stride[1] + batch * tensor.stride[2] +
                       column * tensor.element_bytes;
    for (unsigned chunk = 0; chunk < kRow / kChunk; ++chunk) {
      const unsigned at = to + static_cast<unsigned>(r) * kRow + chunk * kChunk;
      char* place = at_smem(at ^ (at / kRow % 8 * kChunk));
      // A row may end inside a chunk.
      const auto left = static_cast<long long>(tensor.row_bytes) - column * tensor.element_bytes - chunk * kChunk;
      const long long bytes = !exists || left < 0 ? 0 : left < kChunk ? left : kChunk;
      std::memcpy(place, from + chunk * kChunk, static_cast<std::size_t>(bytes));
      std::memset(place + bytes, 0, static_cast<std::size_t>(kChunk - bytes));
    }
  }
}

}  // namespace emulated

namespace attend {

using emulated::block;

inline void ptx_cvt_rn_f16x2_f32(unsigned& to, float high, float low) {
  to = static_cast<unsigned>(emulated::to_half(high)) << 16 | emulated::to_half(low);
}
inline void ptx_cvt_rn_f16_f32(unsigned short& to, float x) {
  to = emulated::to_half(x);
}
inline void ptx_cvt_f32_f16(float& to, unsigned short bits) {
  to = emulated::from_half(bits);
}
inline void ptx_cvt_rn_bf16x2_f32(unsigned& to, float high, float low) {
  to = static_cast<unsigned>(emulated::to_bfloat(high)) << 16 | emulated::to_bfloat(low);
}
inline void ptx_cvt_rn_bf16_f32(unsigned short& to, float x) {
  to = emulated::to_bfloat(x);
}
inline void ptx_cvt_rn_f16x2_e4m3x2(unsigned& to, unsigned short pair) {
  const auto half = [](unsigned byte) { return static_cast<unsigned>(emulated::to_half(emulated::from_e4m3(byte))); };
  to = half(pair >> 8) << 16 | half(pair & 0xff);
}
inline void ptx_cvt_rn_satfinite_e4m3x2_f32(unsigned short& to, float high, float low) {
  to = static_cast<unsigned short>(emulated::to_e4m3(high) << 8 | emulated::to_e4m3(low));
}
// Two such conversions in one asm statement (pack_e4m3).
inline void ptx_cvt_rn_satfinite_e4m3x2_f32(unsigned& to, float a, float b, float c, float d) {
  to = emulated::to_e4m3(d) << 24 | emulated::to_e4m3(c) << 16 | emulated::to_e4m3(b) << 8 | emulated::to_e4m3(a);
}
inline void ptx_sub_f16x2(unsigned& to, unsigned a, unsigned b) {
  const auto half = [&](int shift) {
    const float x = emulated::from_half(static_cast<unsigned short>(a >> shift));
    return static_cast<unsigned>(emulated::to_half(x - emulated::from_half(static_cast<unsigned short>(b >> shift))));
  };
  to = half(16) << 16 | half(0);
}
inline void ptx_ex2_approx_ftz_f32(float& to, float x) {
  to = emulated::flushed(std::exp2(emulated::flushed(x)));
}
inline void ptx_lg2_approx_f32(float& to, float x) {
  to = std::log2(x);
}
// Reads tid.x. Kernels read no other special register by this instruction.
inline void ptx_mov_u32(unsigned& to) {
  to = threadIdx.x;
}
inline void ptx_sqrt_approx_f32(float& to, float x) {
  to = std::sqrt(x);
}
inline void ptx_min_NaN_f32(float& to, float a, float b) {
  to = std::isnan(a) || std::isnan(b) ? NAN : std::fmin(a, b);
}
inline void ptx_ld_global_nc_v4_b32(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* from) {
  unsigned words[4];
  std::memcpy(words, from, sizeof(words));
  a = words[0], b = words[1], c = words[2], d = words[3];
}
inline void ptx_ld_global_u64(std::uint64_t& to, const void* from) {
  to = *static_cast<const std::uint64_t*>(from);
}
inline void ptx_rcp_approx_ftz_f32(float& to, float x) {
  to = emulated::flushed(1.0f / emulated::flushed(x));
}

inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3,
                                                         unsigned row) {
  const auto* all = emulated::exchange(row);
  const int lane = block->lane();
  unsigned* results[4] = {&r0, &r1, &r2, &r3};
  for (int m = 0; m < 4; ++m) {
    const auto address = emulated::words_of<unsigned>(all, m * 8 + lane / 4);
    *results[m] = emulated::load<unsigned>(emulated::at_smem(address + lane % 4 * 4));
  }
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3,
                                                               unsigned row) {
  const auto* all = emulated::exchange(row);
  const int lane = block->lane();
  unsigned* results[4] = {&r0, &r1, &r2, &r3};
  for (int m = 0; m < 4; ++m) {
    *results[m] = 0;
    for (int half = 0; half < 2; ++half) {
      const auto address = emulated::words_of<unsigned>(all, m * 8 + lane % 4 * 2 + half);
      const auto x = emulated::load<unsigned short>(emulated::at_smem(address + lane / 4 * 2));
      *results[m] |= static_cast<unsigned>(x) << 16 * half;
    }
  }
}
inline void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned row, unsigned r0, unsigned r1, unsigned r2,
                                                         unsigned r3) {
  const auto* all = emulated::exchange(row);
  const int lane = block->lane();
  const unsigned pairs[4] = {r0, r1, r2, r3};
  for (int m = 0; m < 4; ++m) {
    const auto address = emulated::words_of<unsigned>(all, m * 8 + lane / 4);
    emulated::store(emulated::at_smem(address + lane % 4 * 4), pairs[m]);
  }
  emulated::warp_barrier();
}
inline void ptx_movmatrix_sync_aligned_m8n8_trans_b16(unsigned& to, unsigned own) {
  const auto* all = emulated::exchange(own);
  const int lane = block->lane();
  to = 0;
  for (int half = 0; half < 2; ++half) {
    const int row = lane % 4 * 2 + half, column = lane / 4;
    const auto pair = emulated::words_of<unsigned>(all, row * 4 + column / 2);
    to |= (pair >> column % 2 * 16 & 0xffff) << 16 * half;
  }
}
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3,
                                                                  unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                                  unsigned b0, unsigned b1, float c0, float c1,
                                                                  float c2, float c3) {
  emulated::mma<emulated::from_half>(d0, d1, d2, d3, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3});
}
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3,
                                                                    unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                                    unsigned b0, unsigned b1, float c0, float c1,
                                                                    float c2, float c3) {
  emulated::mma<emulated::from_bfloat>(d0, d1, d2, d3, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3});
}

// An empty asm statement, which kernels use to hide a number from the compiler.
inline void ptx_(auto& /*number*/) {}

inline void ptx_barrier_cta_sync_aligned(int number, int threads) {
  emulated::block_barrier(number, threads);
}
inline void ptx_barrier_cta_sync(int number, int threads) {
  emulated::block_barrier(number, threads);
}
inline void ptx_bar_sync(int number, int threads) {
  emulated::block_barrier(number, threads);
}
inline void ptx_bar_arrive(int number, int threads) {
  emulated::arrive_at_barrier(number, threads);
}
inline void ptx_barrier_cta_arrive_aligned(int number, int threads) {
  emulated::arrive_at_barrier(number, threads);
}
inline void ptx_mbarrier_init_shared__cta_b64(unsigned at, unsigned arrivals) {
  const auto count = static_cast<std::uint16_t>(arrivals);
  emulated::store(emulated::at_smem(at), emulated::BarrierState{count, count, 0, 0});
}
inline void ptx_mbarrier_arrive_shared__cta_b64(unsigned at) {
  emulated::arrive(reinterpret_cast<std::uint64_t*>(emulated::at_smem(at)));
}
inline void ptx_mbarrier_try_wait_parity_shared__cta_b64(unsigned& done, unsigned at, unsigned parity) {
  const auto state = emulated::load<emulated::BarrierState>(emulated::at_smem(at));
  done = state.phase != parity ? 1 : 0;
  if (done == 0) block->yield();
}

inline void start_copy(unsigned to, const void* from, int bytes, int all_bytes) {
  block->thread().copies.push_back({emulated::PendingCopy::kCopy, emulated::at_smem(to), from, bytes, all_bytes});
}
inline void ptx_cp_async_cg_shared_global(unsigned to, const void* from, unsigned bytes = 16) {
  start_copy(to, from, static_cast<int>(bytes), 16);
}
inline void ptx_cp_async_ca_shared_global(unsigned to, const void* from, unsigned bytes) {
  start_copy(to, from, static_cast<int>(bytes), 4);
}
inline void ptx_cp_async_commit_group() {
  block->thread().copies.push_back({emulated::PendingCopy::kGroupEnd, nullptr, nullptr, 0, 0});
}
inline void ptx_cp_async_wait_group(int groups) {
  emulated::Block::land(block->thread(), groups);
}
inline void ptx_cp_async_mbarrier_arrive_noinc_shared__cta_b64(unsigned at) {
  block->thread().copies.push_back({emulated::PendingCopy::kArrival, emulated::at_smem(at), nullptr, 0, 0});
}

// The emulated copy engine. Its tensor maps have the layout of TensorMap above. Copies of boxes finish at once.
inline std::uint64_t* barrier_at(unsigned at) {
  return reinterpret_cast<std::uint64_t*>(emulated::at_smem(at));
}
inline void ptx_mbarrier_expect_tx_relaxed_cta_shared__cta_b64(unsigned at, unsigned bytes) {
  emulated::add_bytes(barrier_at(at), static_cast<int>(bytes));
}
inline void ptx_mbarrier_arrive_expect_tx_shared__cta_b64(unsigned at, unsigned bytes) {
  emulated::add_bytes(barrier_at(at), static_cast<int>(bytes));
  emulated::arrive(barrier_at(at));
}
inline void ptx_fence_proxy_async_shared__cta() {}
inline void ptx_fence_proxy_async_global() {}
inline void ptx_fence_acq_rel_gpu() {}
inline void ptx_fence_mbarrier_init_release_cluster() {}
inline void ptx_cp_async_bulk_tensor_4d_shared__cluster_global_tile_mbarrier__complete_tx__bytes(
    unsigned to, const void* map, int column, int row, int head, int batch, unsigned barrier) {
  emulated::bring_box(to, map, column, row, head, batch);
  emulated::add_bytes(barrier_at(barrier), -emulated::box_bytes(map));
}
inline void ptx_cp_async_bulk_tensor_4d_shared__cluster_global_tile_mbarrier__complete_tx__bytes_L2__cache_hint(
    unsigned to, const void* map, int column, int row, int head, int batch, unsigned barrier,
    std::uint64_t /*policy*/) {
  ptx_cp_async_bulk_tensor_4d_shared__cluster_global_tile_mbarrier__complete_tx__bytes(to, map, column, row, head,
                                                                                       batch, barrier);
}
inline void ptx_cp_async_bulk_tensor_5d_shared__cluster_global_tile_mbarrier__complete_tx__bytes(
    unsigned to, const void* map, int /*column*/, int row, int /*panel*/, int head, int batch, unsigned barrier) {
  const int panels = emulated::panels_of(map), bytes = emulated::box_bytes(map);
  for (int panel = 0; panel < panels; ++panel) {
    emulated::bring_box(to + static_cast<unsigned>(panel * bytes), map, panel * 64, row, head, batch);
    emulated::add_bytes(barrier_at(barrier), -bytes);
  }
}
inline void ptx_cp_async_bulk_tensor_4d_global_shared__cta_tile_bulk_group(const void* map, int column, int row,
                                                                           int head, int batch, unsigned from) {
  emulated::take_box(map, column, row, head, batch, from);
}
inline void ptx_cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(unsigned to, const void* from,
                                                                                  unsigned bytes, unsigned barrier) {
  std::memcpy(emulated::at_smem(to), from, bytes);
  emulated::add_bytes(barrier_at(barrier), -static_cast<int>(bytes));
}
inline void ptx_cp_reduce_async_bulk_global_shared__cta_bulk_group_add_f32(float* to, unsigned from, unsigned bytes) {
  for (unsigned n = 0; n < bytes / 4; ++n) to[n] += emulated::load<float>(emulated::at_smem(from + 4 * n));
}
inline void ptx_cp_async_bulk_global_shared__cta_bulk_group(float* to, unsigned from, unsigned bytes) {
  std::memcpy(to, emulated::at_smem(from), bytes);
}
inline void ptx_cp_async_bulk_commit_group() {}
inline void ptx_cp_async_bulk_wait_group() {}
inline void ptx_cp_async_bulk_wait_group_read() {}
inline void ptx_red_relaxed_gpu_global_add_v4_f32(void* at, float a, float b, float c, float d) {
  auto* const to = static_cast<float*>(at);
  to[0] += a, to[1] += b, to[2] += c, to[3] += d;
}
inline void ptx_st_shared_b16(unsigned to, unsigned short bits) {
  emulated::store(emulated::at_smem(to), bits);
}
inline void ptx_st_shared_v4_f32(unsigned to, float a, float b, float c, float d) {
  emulated::store(emulated::at_smem(to), float4{a, b, c, d});
}
inline void ptx_ld_shared_v4_f32(float& a, float& b, float& c, float& d, unsigned from) {
  const auto all = emulated::load<float4>(emulated::at_smem(from));
  a = all.x, b = all.y, c = all.z, d = all.w;
}
inline void ptx_st_relaxed_gpu_global_u32(unsigned* to, unsigned value) {
  emulated::store(to, value);
}
inline void ptx_ld_relaxed_gpu_global_u32(unsigned& to, const unsigned* from) {
  block->yield();
  to = emulated::load<unsigned>(from);
}
inline void ptx_mul_rn_bf16x2(unsigned& to, unsigned a, unsigned b) {
  const auto half = [&](int shift) {
    const float x = emulated::from_bfloat(static_cast<unsigned short>(a >> shift));
    return static_cast<unsigned>(
        emulated::to_bfloat(x * emulated::from_bfloat(static_cast<unsigned short>(b >> shift))));
  };
  to = half(16) << 16 | half(0);
}
inline void ptx_add_cc_u32(unsigned& bits, unsigned word, unsigned addend) {
  bits = 2 * bits + (static_cast<std::uint64_t>(word) + addend >> 32 != 0 ? 1 : 0);
}
inline void ptx_prmt_b32(unsigned& to, unsigned low, unsigned high, unsigned selector) {
  to = __byte_perm(low, high, selector);
}
inline void ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned row, unsigned r0, unsigned r1, unsigned r2,
                                                               unsigned r3) {
  const auto* all = emulated::exchange(row);
  const int lane = block->lane();
  const unsigned pairs[4] = {r0, r1, r2, r3};
  for (int m = 0; m < 4; ++m) {
    for (int half = 0; half < 2; ++half) {
      const auto address = emulated::words_of<unsigned>(all, m * 8 + lane % 4 * 2 + half);
      emulated::store(emulated::at_smem(address + lane / 4 * 2), static_cast<unsigned short>(pairs[m] >> 16 * half));
    }
  }
  emulated::warp_barrier();
}
inline void ptx_prefetch_tensormap(const void* /*map*/) {}
inline void ptx_cp_async_bulk_prefetch_tensor_4d_L2_global_tile(const void* /*map*/, int /*column*/, int /*row*/,
                                                                int /*head*/, int /*batch*/) {}
inline void ptx_createpolicy_fractional_L2__evict_first_b64(std::uint64_t& policy) {
  policy = 1;
}
inline void ptx_createpolicy_fractional_L2__evict_normal_b64(std::uint64_t& policy) {
  policy = 2;
}

inline void ptx_setmaxnreg_dec_sync_aligned_u32(int /*registers*/) {}
inline void ptx_setmaxnreg_inc_sync_aligned_u32(int /*registers*/) {}
inline void ptx_st_release_gpu_global_u32(unsigned* to, unsigned value) {
  emulated::store(to, value);
}
inline void ptx_ld_acquire_gpu_global_u32(unsigned& to, const unsigned* from) {
  block->yield();
  to = emulated::load<unsigned>(from);
}

/// Reads %globaltimer. Kernels read no other 64-bit register.
template <class Int>
void ptx_mov_u64(Int& nanoseconds) {
  nanoseconds = clock64();
}
inline void ptx_griddepcontrol_wait() {
  emulated::put_late_arrays(&emulated::LateArray::late);
}
inline void ptx_griddepcontrol_launch_dependents() {}

inline void ptx_st_relaxed_gpu_global_b128(void* to, std::uint64_t low, std::uint64_t high) {
  const std::uint64_t words[2] = {low, high};
  std::memcpy(to, words, sizeof(words));
}

}  // namespace attend
