// Generates standard normal numbers that are bit-identical on every machine. `attend generate` writes them.
#pragma once

#include <cstdint>
#include <span>

namespace attend::io {

/// Numbers that select independent sequences of random numbers for the same seed.
enum class NormalStream : std::uint32_t { kQ = 0, kK = 1, kV = 2, kDOut = 3 };

/// Sets out[i] to element first + i of the sequence (seed, stream). The elements are N(0,1) numbers in float32 with |x|
/// < 6.67.
///
/// Elements 4 n to 4 n + 3 come from one Philox 4x32-10 block. Its counter is (low 32 bits of n, high 32 bits of n,
/// stream, 1), and its key is (low 32 bits of seed, high 32 bits of seed). By the method of Box and Muller, the words
/// w0 and w1 of the block give the two numbers r cos(2 pi t) and r sin(2 pi t), where
///
///   u = (w0 + 1) / 2^32,  t = w1 / 2^32,  r = sqrt(-2 ln u)
///
/// The words w2 and w3 give two more numbers in the same manner. The computation is float64, and the result is rounded
/// to float32. It uses only + - * / and sqrt, because IEEE 754 defines their results to the last bit. The ln and cos of
/// the C library are not defined so precisely.
///
/// Sources: Salmon et al. (SC 2011) for Philox; Box and Muller (1958).
void fill_normal(std::span<float> out, std::uint64_t seed, NormalStream stream, std::uint64_t first);

}  // namespace attend::io
