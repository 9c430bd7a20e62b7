// The caller's own modification of scores. A program that has one is compiled with the caller's text in the place of
// this file (KernelSpec::custom_score). The text must define the same names.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"

namespace attend {

struct CustomScoreCode {
  // score: after the other modifications, before masks. Positions count from the first row and key of the sequence.
  [[nodiscard]] static ATTEND_HOST_DEVICE float apply(float score, uint32 /*sequence*/, uint32 /*head*/, int64 /*row*/,
                                                      int64 /*key*/, const CapturedTensor* /*captured*/) {
    return score;
  }
};

}  // namespace attend
