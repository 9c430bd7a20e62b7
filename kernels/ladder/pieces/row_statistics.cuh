// State of a row between two tiles of keys, in FlashAttention's first loop order. Rungs 04 and 05 use it.
#pragma once

namespace attend {

// m and l of a row. The workspace of a kernel holds RowStatistics (batch, heads, seqlen_q).
struct RowStatistics {
  float row_max;
  float row_sum;
};

}  // namespace attend
