// The place of one sequence's keys in k, v and their gradients. Only this file turns a key of a sequence into an
// address: in 64 bits, on the host and on the device.
//
//   dense    rows 0, 1, ... of the sequence's batch entry
//   packed   rows begin, begin + 1, ... of batch entry 0, which holds all sequences one after another
//   paged    pages of page_size keys. A page is a batch entry of the tensor; a table lists the pages of a sequence
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"

namespace attend {

// The batch entry and the row of a tensor (batch, heads, rows, head_dim): coordinates of a TMA instruction.
struct RowPlace {
  int64 batch;
  int64 row;
};

// Dense or packed keys.
struct KeySource {
  uint32 batch;
  int64 begin;   // dense: 0
  int64 length;  // keys of the sequence

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr RowPlace place(int64 key) const { return {batch, begin + key}; }

  // Returns the offset from the tensor's first element, in elements.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 offset(const TensorStrides& stride, uint32 head, int64 key) const {
    return stride.offset(batch, head, begin + key);
  }

  // Returns the number of keys from `key` on that lie one row stride apart.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 run(int64 key) const { return length - key; }
};

// Paged keys. Sequences may share pages. Table entries after the last key are never read.
struct PagedKeySource {
  const int* pages;  // the sequence's pages: pages[n] holds the keys from n * page_size on
  int page_size;     // keys, a power of two
  int64 length;

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr RowPlace place(int64 key) const {
    return {pages[key / page_size], key % page_size};
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 offset(const TensorStrides& stride, uint32 head, int64 key) const {
    const RowPlace at = place(key);
    return at.batch * stride.batch + head * stride.head + at.row * stride.row;
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 run(int64 key) const {
    const int64 in_page = page_size - key % page_size;
    return in_page < length - key ? in_page : length - key;
  }
};

}  // namespace attend
