#include "attend/ring.hpp"
#include "ring/transport/transport.hpp"

namespace attend {

RingContext::RingContext(std::shared_ptr<ring::Transport> transport) noexcept : transport_(std::move(transport)) {}
RingContext::RingContext(const RingContext&) = default;
RingContext::RingContext(RingContext&&) noexcept = default;
RingContext& RingContext::operator=(const RingContext&) = default;
RingContext& RingContext::operator=(RingContext&&) noexcept = default;
RingContext::~RingContext() = default;

int RingContext::rank() const {
  return transport_->rank();
}

int RingContext::size() const {
  return transport_->size();
}

}  // namespace attend
