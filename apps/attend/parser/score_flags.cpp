#include "parser/score_flags.hpp"

#include <fmt/format.h>

namespace attend::cli {

void ScoreFlags::add(CLI::App& app) {
  app.add_option("--score", text, "Function of the scores, as in docs/custom_scores.md: 'score - 0.1 * abs(q - k)'")
      ->type_name("TEXT");
  app.add_option(
         "--block_mask", mask_text,
         "Condition for a row to see a key, as in docs/custom_scores.md: 'k <= q && doc[q] == doc[k]'; CPUs only")
      ->type_name("TEXT");
  app.add_option(
         "--tensor", tensors,
         "Tensor that --score or --block_mask reads, as a .npy file: table=table.npy; may be given several times")
      ->type_name("NAME=FILE");
}

void ScoreFlags::finish(RunOptions& options) const {
  const auto refuse = [](const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); };
  options.score = text;
  options.block_mask = mask_text;
  if (text && text->empty()) refuse("--score: an empty text, allowed a function: 'score - 0.1 * abs(q - k)'");
  if (mask_text && mask_text->empty()) refuse("--block_mask: an empty text, allowed a condition: 'k <= q'");
  if (!text && !mask_text && !tensors.empty()) {
    refuse("--tensor: given without --score and --block_mask, allowed with one of them");
  }
  if (text && options.ring) refuse("--score: given with --ring, allowed without it");
  if (mask_text && options.ring) refuse("--block_mask: given with --ring, allowed without it");
  for (const std::string& tensor : tensors) {
    const std::size_t sign = tensor.find('=');
    if (sign == 0 || sign == std::string::npos || sign + 1 == tensor.size()) {
      refuse(fmt::format("--tensor: '{}', allowed NAME=FILE", tensor));
    }
    options.captures.emplace_back(tensor.substr(0, sign), tensor.substr(sign + 1));
  }
}

}  // namespace attend::cli
