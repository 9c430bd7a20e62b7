// Makes a separate problem from one batch entry, head or sequence of a problem that has very many of them.
#pragma once

#include "support/expect.hpp"

namespace attend::test {

/// The dimension of which the problem has very many entries. Packed sequences all have the same length.
enum class Many : std::uint8_t { kBatch, kHeads, kSequences };

/// Returns a copy of entry n of a tensor that has `rows` rows in each entry.
[[nodiscard]] inline TensorBuffer entry_of(const TensorBuffer& t, Many many, std::int64_t n, std::int64_t rows) {
  return made(t.dtype(), {1, 1, rows, t.shape()[3]}, [&](auto, auto, auto row, auto col) {
    return many == Many::kBatch   ? t.at(n, 0, row, col)
           : many == Many::kHeads ? t.at(0, n, row, col)
                                  : t.at(0, 0, n * rows + row, col);
  });
}

[[nodiscard]] inline Inputs entry_of(const Inputs& in, Many many, std::int64_t n) {
  Inputs one = in;
  AttentionCase& c = one.options;
  if (many == Many::kSequences) {
    c.seqlen_q = c.varlen_q.front(), c.seqlen_k = c.varlen_k.front();
    c.varlen_q.clear(), c.varlen_k.clear();
    one.cu_q = one.cu_k = nullptr;
  }
  c.batch = c.heads_q = c.heads_k = 1;
  one.q = entry_of(in.q, many, n, c.seqlen_q);
  one.k = entry_of(in.k, many, n, c.seqlen_k);
  one.v = entry_of(in.v, many, n, c.seqlen_k);
  one.dout = entry_of(in.dout, many, n, c.seqlen_q);
  return one;
}

/// @param one the single-entry problem that entry_of(in, many, n) returned.
[[nodiscard]] inline Outputs entry_of(const Outputs& out, const Inputs& one, Many many, std::int64_t n) {
  const std::int64_t rows = one.options.seqlen_q, keys = one.options.seqlen_k;
  return {entry_of(out.o, many, n, rows),  entry_of(out.lse, many, n, rows), entry_of(out.dq, many, n, rows),
          entry_of(out.dk, many, n, keys), entry_of(out.dv, many, n, keys),  {}};
}

}  // namespace attend::test
