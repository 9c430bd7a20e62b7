#include "gpu/families.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attend/attention.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/family.hpp"
#include "dispatch/dispatch.hpp"
#include "gpu/forward_checks.hpp"

namespace attend::test {
namespace {

/// Copies of the arguments of forward and backward in which all tensors are on the GPU.
struct Arguments {
  Arguments(std::string_view compute, const Inputs& in, const Outputs& out, int device = 0)
      : q(on_gpu(in.q)),
        k(on_gpu(in.k)),
        v(on_gpu(in.v)),
        dout(on_gpu(in.dout)),
        o(on_gpu(out.o)),
        lse(on_gpu(out.lse)),
        dq(on_gpu(out.dq)),
        dk(on_gpu(out.dk)),
        dv(on_gpu(out.dv)),
        params(in.params(compute)) {
    if (in.dlse) extras.dlse = on_gpu(*in.dlse);
    if (out.dbias) extras.dbias = on_gpu(*out.dbias);
    if (out.dsinks) extras.dsinks = on_gpu(*out.dsinks);
    for (Tensor* t : {&q, &k, &v, &dout, &o, &lse, &dq, &dk, &dv}) t->device.index = device;
    for (std::optional<ConstTensor>* t :
         {&params.bias, &params.mask, &params.alibi_slopes, &params.sinks, &extras.dlse}) {
      if (*t) (*t)->device = q.device;
    }
    for (std::optional<Tensor>* t : {&extras.dbias, &extras.dsinks}) {
      if (*t) (*t)->device = q.device;
    }
  }
  Tensor q, k, v, dout, o, lse, dq, dk, dv;
  Params params;
  BackwardExtras extras;
};

}  // namespace

void FamilyTest::SetUp() {
  GpuTest::SetUp();
  if (!IsSkipped() && !cuda::find_family(GetParam())->supports(cuda::device_info(0).arch())) {
    GTEST_SKIP() << "no instructions for " << GetParam();
  }
}

bool has_forward(std::string_view compute) {
  return dispatch::find_backend(compute)->forward != nullptr;
}

std::string lack_of(std::string_view compute, const Inputs& in, const ScoreFunction* score) {
  const Outputs out = make_outputs(in);
  Arguments a(compute, in, out);
  a.params.score = score;
  const core::Backend& backend = *dispatch::find_backend(compute);
  std::string lack;
  if (backend.forward) {
    lack = dispatch::lack_of(backend, core::make_forward_problem(a.q, a.k, a.v, a.o, &a.lse, a.params)).value_or("");
  }
  if (!lack.empty() || !backend.backward) return lack;
  return dispatch::lack_of(backend, core::make_backward_problem(a.dout, a.q, a.k, a.v, a.o, a.lse, a.dq, a.dk, a.dv,
                                                                a.params, a.extras))
      .value_or("");
}

void submit_passes(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream,
                   const Workspaces& workspaces, int device) {
  Arguments a(compute, in, out, device);
  if (has_forward(compute)) {
    a.params.workspace = workspaces.forward;
    forward(a.q, a.k, a.v, a.o, &a.lse, a.params, stream);
  }
  if (!has_backward(compute)) return;
  a.params.workspace = workspaces.backward;
  backward(a.dout, a.q, a.k, a.v, a.o, a.lse, a.dq, a.dk, a.dv, a.params, stream, a.extras);
}

void expect_finite(std::string_view compute, const Outputs& out) {
  std::vector<const TensorBuffer*> written = {&out.o, &out.lse};
  if (has_backward(compute)) written.insert(written.end(), {&out.dq, &out.dk, &out.dv});
  for (const TensorBuffer* t : written) {
    const std::vector<double> values = t->values();
    const bool is_lse = t == &out.lse;
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [is_lse](double x) {
      return std::isfinite(x) || (is_lse && x == -std::numeric_limits<double>::infinity());
    }));
  }
}

std::pair<std::size_t, std::size_t> workspace_bytes(std::string_view compute, const Inputs& in, const Outputs& out) {
  const Arguments a(compute, in, out);
  std::pair<std::size_t, std::size_t> bytes = {0, 0};
  if (has_forward(compute)) bytes.first = forward_workspace_bytes(a.q, a.k, a.v, a.o, &a.lse, a.params);
  if (has_backward(compute)) {
    bytes.second = backward_workspace_bytes(a.dout, a.q, a.k, a.v, a.o, a.lse, a.dq, a.dk, a.dv, a.params, a.extras);
  }
  return bytes;
}

}  // namespace attend::test
