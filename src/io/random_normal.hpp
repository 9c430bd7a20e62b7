// Standard normal values that are bit-identical on every machine. `attend generate` writes them.
#pragma once

#include <cstdint>
#include <span>

namespace attend::io {

/// Independent sequences under one seed.
enum class NormalStream : std::uint32_t { kQ = 0, kK = 1, kV = 2, kDOut = 3 };

/// out[i] = element first + i of the sequence (seed, stream): N(0,1), |x| < 6.67, float32.
///
/// Elements 4 n .. 4 n + 3 come from one Philox 4x32-10 block with counter (low 32 bits of n, high 32 bits of n,
/// stream, 1) and key (low, high 32 bits of seed). Words w0, w1 (and likewise w2, w3) give two values by Box-Muller:
///   u = (w0 + 1) / 2^32,  t = w1 / 2^32,  r = sqrt(-2 ln u),  r cos(2 pi t),  r sin(2 pi t)
/// in float64 and rounded to float32. Only + - * / and sqrt are used, because IEEE 754 defines their results to the
/// last bit; the C library's ln and cos are not defined so precisely. Source: Salmon et al. (SC 2011) for Philox; Box
/// and Muller (1958).
void fill_normal(std::span<float> out, std::uint64_t seed, NormalStream stream, std::uint64_t first);

}  // namespace attend::io
