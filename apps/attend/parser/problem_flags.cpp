#include "parser/problem_flags.hpp"

#include <fmt/format.h>
#include <algorithm>

#include <iterator>
#include <limits>
#include <utility>

#include "core/dtype_traits.hpp"
#include "core/problem.hpp"
#include "parser/flags.hpp"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

const std::vector<DType>& flag_dtypes() {
  static const std::vector<DType> dtypes = [] {
    std::vector<DType> floats;
    std::copy_if(core::kDTypes.begin(), core::kDTypes.end(), std::back_inserter(floats), core::is_float);
    return floats;
  }();
  return dtypes;
}

const std::vector<DType>& problem_dtypes() {
  static const std::vector<DType> dtypes = [] {
    std::vector<DType> all = flag_dtypes();
    all.push_back(DType::kF8E4M3);
    return all;
  }();
  return dtypes;
}

std::vector<std::string> dtype_names(const std::vector<DType>& dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(dtype_name(dtype));
  return names;
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> pieces;
  for (;;) {
    const std::size_t comma = text.find(',');
    pieces.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return pieces;
    text.remove_prefix(comma + 1);
  }
}

void AttentionFlags::add(CLI::App& app, AttentionOptions& options) {
  app.add_flag("--causal", options.causal, "Row i sees the keys j <= i + seqlen_k - seqlen_q");
  add_integer(app, "--window_left", options.window_left, -1, core::kMaxLength,
              "Keys seen left of the diagonal; -1: all");
  add_integer(app, "--window_right", options.window_right, -1, core::kMaxLength,
              "Keys seen right of the diagonal; -1: all");
  add_real(app, "--scale", options.scale, -kInfinity, kInfinity, false, "Factor of q.k; 1/sqrt(head_dim) if not given");
  for (std::size_t i = 0; i < score_numbers.size(); ++i) {
    const core::ScoreNumber& row = core::kScoreNumbers[i];
    add_real(app, fmt::format("--{}", row.name), score_numbers[i], 0, row.end, row.excludes_end, row.help);
  }
}

void AttentionFlags::finish(AttentionOptions& options) const {
  for (std::size_t i = 0; i < score_numbers.size(); ++i) options.score_numbers[i] = score_numbers[i].value_or(0);
}

void ProblemFlags::add(CLI::App& app, const char* flag, AttentionOptions& options, const std::vector<DType>& dtypes) {
  app.add_option(flag, sizes, "Batch, query heads, seqlen and head_dim: 2,16,8192,128")->type_name("B,H,S,D");
  const std::vector<std::string> names = dtype_names(dtypes);
  const std::string help = fmt::format("Type of the numbers, {} if not given", names.at(dtype));
  add_choice(app, "--dtype", dtype, names, help.c_str());
  add_integer(app, "--num_heads_kv", heads_kv, 1, core::kMaxLength, "Key and value heads; those of Q if not given");
  add_integer(app, "--seq_len_k", seqlen_k, 1, core::kMaxLength, "Keys; as many as query rows if not given");
  add_integer(app, "--head_dim_v", head_dim_v, 1, core::kMaxHeadDim, "Columns of V; those of K if not given");
  attention.add(app, options);
}

void ProblemFlags::finish_without_sizes(const char* flag, AttentionOptions& options) const {
  const std::pair<const char*, std::int64_t> sizes_of_a_problem[] = {
      {"--num_heads_kv", heads_kv}, {"--seq_len_k", seqlen_k}, {"--head_dim_v", head_dim_v}};
  for (const auto& [name, value] : sizes_of_a_problem) {
    if (value != 0) refuse(fmt::format("{}: given without {}, allowed with it", name, flag));
  }
  attention.finish(options);
}

io::FolderSpec ProblemFlags::finish(const char* flag, AttentionOptions& options) const {
  attention.finish(options);
  const std::vector<std::string> pieces = split_at_commas(sizes);
  if (pieces.size() != 4) refuse(fmt::format("{}: '{}', allowed B,H,S,D, four integers", flag, sizes));
  const auto size = [&](std::size_t at, std::int64_t largest) { return parse_integer(flag, pieces[at], 1, largest); };
  io::FolderSpec spec = {.batch = size(0, core::kMaxLength),
                         .num_heads = size(1, core::kMaxLength),
                         .seqlen_q = size(2, core::kMaxLength),
                         .head_dim = size(3, core::kMaxHeadDim),
                         .dtype = problem_dtypes().at(dtype)};
  spec.num_heads_kv = heads_kv == 0 ? spec.num_heads : heads_kv;
  spec.seqlen_k = seqlen_k == 0 ? spec.seqlen_q : seqlen_k;
  spec.head_dim_v = head_dim_v == 0 ? spec.head_dim : head_dim_v;
  if (spec.num_heads % spec.num_heads_kv != 0) {
    refuse(fmt::format("--num_heads_kv: {}, allowed a divisor of H {}", spec.num_heads_kv, spec.num_heads));
  }
  if (const auto tensor = io::oversized_tensor(spec)) {
    refuse(fmt::format("{}: {} {}, allowed at most 2^62 bytes", flag, *tensor, dtype_name(spec.dtype)));
  }
  return spec;
}

}  // namespace attend::cli
