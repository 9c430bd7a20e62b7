#include "gpu/serving.hpp"

#include <cmath>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::test {
namespace {

template <class View>
void move_to_gpu(View& view) {
  view.device = {DeviceType::kCUDA, 0};
}

template <class View>
void move_to_gpu(std::optional<View>& view) {
  if (view) move_to_gpu(*view);
}

void move_to_gpu(CacheIndex& cache) {
  move_to_gpu(cache.k_descale);
  move_to_gpu(cache.v_descale);
}

void wait() {
  const cuda::ContextGuard guard(0);
  cuda::synchronize(nullptr);
}

}  // namespace

DecodeCall on_gpu(DecodeCall call, cuda::StreamHandle stream) {
  move_to_gpu(call.q);
  move_to_gpu(call.k_cache);
  move_to_gpu(call.v_cache);
  move_to_gpu(call.o);
  move_to_gpu(call.lse);
  move_to_gpu(call.cache);
  move_to_gpu(call.params.alibi_slopes);
  move_to_gpu(call.params.sinks);
  if (call.params.compute != "decode" && call.params.compute != "sm90_forward") call.params.compute = "auto";
  call.stream = stream;
  return call;
}

AppendCall on_gpu(AppendCall call, cuda::StreamHandle stream) {
  move_to_gpu(call.k);
  move_to_gpu(call.v);
  move_to_gpu(call.k_cache);
  move_to_gpu(call.v_cache);
  move_to_gpu(call.cache);
  if (call.rotary) {
    move_to_gpu(call.rotary->cos);
    move_to_gpu(call.rotary->sin);
  }
  move_to_gpu(call.q);
  move_to_gpu(call.q_out);
  move_to_gpu(call.q_norm);
  move_to_gpu(call.k_norm);
  call.stream = stream;
  return call;
}

ServingCalls gpu_calls() {
  return {[](const AppendCall& call) { append(on_gpu(call)), wait(); },
          [](const DecodeCall& call) { decode(on_gpu(call)), wait(); },
          [](const AppendCall& appended, const DecodeCall& call) { decode(on_gpu(appended), on_gpu(call)), wait(); }};
}

Decode gpu_decode_by(std::string_view compute) {
  return [compute](DecodeCall call) {
    call.params.compute = compute;
    gpu_calls().decode(call);
  };
}

GpuDecode::GpuDecode(const CacheCase& problem) : call_(problem.call()) {
  const Shape& shape = problem.q.shape();
  o_ = TensorBuffer(problem.facts().dtype, {shape[0], shape[1], shape[2], problem.facts().head_dim_v});
  lse_ = TensorBuffer(DType::kF32, {shape[0], shape[1], shape[2], 1});
  call_.o = o_.view();
  call_.lse = lse_.view();
}

std::vector<std::byte> GpuDecode::bytes() const {
  std::vector<std::byte> all = o_.bytes();
  const std::vector<std::byte> of_lse = lse_.bytes();
  all.insert(all.end(), of_lse.begin(), of_lse.end());
  return all;
}

void GpuDecode::poison() const {
  o_.fill(std::nan(""));
  lse_.fill(std::nan(""));
}

}  // namespace attend::test
