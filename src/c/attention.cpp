// Implements the C interface for forward, backward, plans, backends and threads.
#include "attend/attention.hpp"

#include <memory>

#include "c/arguments.hpp"
#include "c/json.hpp"
#include "c/struct_sizes.hpp"

using attend::c::guarded;

struct attend_plan {
  attend::Plan plan;
};

namespace attend::c {
namespace {

const Plan& plan_of(const attend_plan* given) {
  if (given == nullptr) refuse("plan: null, allowed a plan");
  return given->plan;
}

template <class Call>
void make_plan(const Call& call, attend_plan*& place) {
  place = std::make_unique<attend_plan>(attend_plan{attend::plan(call)}).release();
}

JsonObject json_of(const Candidate& c) {
  JsonObject object;
  object.add("compute", c.compute).add("chosen", c.chosen).add("lack", c.lack).add("why", c.why);
  object.add("variant", c.variant).add("steps", c.steps).add("estimated_us", c.estimated_us);
  return object.add("workspace_bytes", c.workspace_bytes);
}

/// Returns the backends of this build, which never change. The list is never freed, because callers may use the names
/// until the process ends.
const std::vector<BackendInfo>& all_backends() {
  static const std::vector<BackendInfo>& list = *new std::vector<BackendInfo>(backends());
  return list;
}

void get_backend(std::int32_t index, attend_backend_info* info) {
  std::size_t size = 0;
  std::memcpy(&size, &result("info", info), sizeof size);
  check_struct_size("info", size, kFirstSize<attend_backend_info>);
  const std::vector<BackendInfo>& list = all_backends();
  if (index < 0 || index >= static_cast<std::int64_t>(list.size())) {
    refuse("index: {}, allowed 0 to {}", index, list.size() - 1);
  }
  const BackendInfo& backend = list[static_cast<std::size_t>(index)];
  fill_struct(info, size,
              attend_backend_info{.struct_size = size,
                                  .name = backend.name.c_str(),
                                  .description = backend.description.c_str(),
                                  .device_type = static_cast<std::int32_t>(backend.device),
                                  .has_backward = backend.has_backward ? 1 : 0});
}

}  // namespace
}  // namespace attend::c

void attend_varlen_init(attend_varlen* varlen, std::size_t struct_size) {
  attend::c::fill_struct(varlen, struct_size, {});
}

void attend_params_init(attend_params* params, std::size_t struct_size) {
  attend_params defaults = {};
  defaults.window_left = -1;
  defaults.window_right = -1;
  attend::c::fill_struct(params, struct_size, defaults);
}

void attend_forward_call_init(attend_forward_call* call, std::size_t struct_size) {
  attend::c::fill_struct(call, struct_size, {});
}

std::int32_t attend_forward(const attend_forward_call* call, attend_error* error) {
  return guarded(error, [&] { attend::forward(attend::c::forward_call_of(call)); });
}

void attend_backward_call_init(attend_backward_call* call, std::size_t struct_size) {
  attend::c::fill_struct(call, struct_size, {});
}

std::int32_t attend_backward(const attend_backward_call* call, attend_error* error) {
  return guarded(error, [&] { attend::backward(attend::c::backward_call_of(call)); });
}

std::int32_t attend_plan_forward(const attend_forward_call* call, attend_plan** plan, attend_error* error) {
  return guarded(error,
                 [&] { attend::c::make_plan(attend::c::forward_call_of(call), attend::c::result("plan", plan)); });
}

std::int32_t attend_plan_backward(const attend_backward_call* call, attend_plan** plan, attend_error* error) {
  return guarded(error,
                 [&] { attend::c::make_plan(attend::c::backward_call_of(call), attend::c::result("plan", plan)); });
}

void attend_plan_free(attend_plan* plan) {
  const std::unique_ptr<attend_plan> owner(plan);
}

std::int32_t attend_plan_compute(const attend_plan* plan, const char** name, attend_error* error) {
  return guarded(error, [&] {
    const char*& place = attend::c::result("name", name);
    place = attend::c::plan_of(plan).compute().data();
  });
}

std::int32_t attend_plan_workspace_bytes(const attend_plan* plan, std::size_t* bytes, attend_error* error) {
  return guarded(error, [&] {
    std::size_t& place = attend::c::result("bytes", bytes);
    place = attend::c::plan_of(plan).workspace_bytes();
  });
}

std::int32_t attend_plan_prepare(const attend_plan* plan, attend_error* error) {
  return guarded(error, [&] { attend::c::plan_of(plan).prepare(); });
}

std::int32_t attend_plan_run(const attend_plan* plan, attend_error* error) {
  return guarded(error, [&] { attend::c::plan_of(plan).run(); });
}

std::int32_t attend_plan_run_in(const attend_plan* plan, void* workspace, std::size_t bytes, attend_error* error) {
  return guarded(error, [&] { attend::c::plan_of(plan).run({workspace, bytes}); });
}

std::int32_t attend_plan_explain(const attend_plan* plan, char* text, std::size_t text_bytes, std::size_t* needed_bytes,
                                 attend_error* error) {
  return guarded(error, [&] {
    std::vector<attend::c::JsonObject> list;
    for (const attend::Candidate& c : attend::c::plan_of(plan).explanation()) list.push_back(attend::c::json_of(c));
    attend::c::give_text(attend::c::json(list), text, text_bytes, needed_bytes);
  });
}

void attend_backend_info_init(attend_backend_info* info, std::size_t struct_size) {
  attend::c::fill_struct(info, struct_size, {});
}

std::int32_t attend_num_backends(std::int32_t* count, attend_error* error) {
  return guarded(
      error, [&] { attend::c::result("count", count) = static_cast<std::int32_t>(attend::c::all_backends().size()); });
}

std::int32_t attend_get_backend(std::int32_t index, attend_backend_info* info, attend_error* error) {
  return guarded(error, [&] { attend::c::get_backend(index, info); });
}

std::int32_t attend_cpu_threads(std::int32_t* threads, attend_error* error) {
  return guarded(error, [&] { attend::c::result("threads", threads) = attend::cpu_threads(); });
}

std::int32_t attend_set_cpu_threads(std::int32_t threads, attend_error* error) {
  return guarded(error, [&] { attend::set_cpu_threads(threads); });
}

std::int32_t attend_cpu_simd_target(char* text, std::size_t text_bytes, std::size_t* needed_bytes,
                                    attend_error* error) {
  return guarded(error, [&] { attend::c::give_text(attend::cpu_simd_target(), text, text_bytes, needed_bytes); });
}

std::int32_t attend_cpu_bf16_unit(char* text, std::size_t text_bytes, std::size_t* needed_bytes, attend_error* error) {
  return guarded(error, [&] { attend::c::give_text(attend::cpu_bf16_unit(), text, text_bytes, needed_bytes); });
}
