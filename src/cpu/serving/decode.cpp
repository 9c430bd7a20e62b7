#include "cpu/serving/decode_backends.hpp"
namespace attend::cpu { void decode(const core::DecodeProblem& p) { decode_reference(p); } }
