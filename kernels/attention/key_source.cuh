// Places of a sequence's keys in k, v and their gradients. Only this file turns a key of a sequence into an address. It
// computes in 64 bits, on the host and on the device.
//
// - Dense keys are the rows 0, 1, ... of the sequence's batch entry.
// - Packed keys are the rows begin, begin + 1, ... of batch entry 0, which contains all sequences one after another.
// - Paged keys lie in pages of page_size keys. A page is a batch entry of the tensor. A table lists the pages of a
//   sequence.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"

namespace attend {

// Batch entry and row in a tensor (batch, heads, rows, head_dim). A TMA instruction uses these two coordinates.
struct RowPlace {
  int64 batch;
  int64 row;
};

// Places of dense or packed keys.
struct KeySource {
  uint32 batch;
  int64 begin;   // first row of the sequence, 0 if keys are dense
  int64 length;  // number of keys of the sequence

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr RowPlace place(int64 key) const { return {batch, begin + key}; }

  // Returns the offset of a key from the tensor's first element, in elements.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 offset(const TensorStrides& stride, uint32 head, int64 key) const {
    return stride.offset(batch, head, begin + key);
  }

  // Returns how many keys, beginning with `key`, lie at a distance of one row stride from each other.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 run(int64 key) const { return length - key; }
};

// Places of paged keys. Sequences may share pages. Table entries behind the page of the last key are never read.
struct PagedKeySource {
  const int* pages;  // the sequence's pages. pages[n] has the keys from n * page_size on
  int page_size;     // number of keys in a page, a power of two
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
