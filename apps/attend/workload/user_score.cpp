#include "workload/user_score.hpp"

#include <utility>

#include "core/dtype_traits.hpp"

namespace attend::cli {

std::vector<ScoreCapture> views_of(const std::vector<UserScore::Capture>& captures) {
  std::vector<ScoreCapture> views;
  for (const UserScore::Capture& c : captures) {
    views.push_back({c.name, strided_view(c.array.tensor, c.array.shape)});
  }
  return views;
}

StridedTensor strided_view(const io::HostTensor& tensor, const std::vector<std::int64_t>& shape) {
  return {.data = tensor.view().data, .dtype = tensor.dtype(), .shape = shape};
}

UserScore::UserScore(const std::string& text, std::vector<Capture> captures)
    : captures_(std::move(captures)), function_(text, views_of(captures_)) {}

ScoreFunction UserScore::of_copies(const std::function<Tensor(const io::HostTensor&)>& copy) const {
  std::vector<ScoreCapture> views = views_of(captures_);
  for (std::size_t n = 0; n < views.size(); ++n) {
    const Tensor there = copy(captures_[n].array.tensor);
    views[n].tensor.data = there.data;
    views[n].tensor.device = there.device;
  }
  return function_.with(std::move(views));
}

std::vector<const UserScore::Capture*> UserScore::learned_captures() const {
  std::vector<const Capture*> floats;
  for (const Capture& capture : captures_) {
    if (core::is_float(capture.array.tensor.dtype()) && !capture.is_constant) floats.push_back(&capture);
  }
  return floats;
}

}  // namespace attend::cli
