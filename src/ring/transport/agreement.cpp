#include "ring/transport/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "cpu/parallel.hpp"

namespace attend::ring {
namespace {

std::string packed(const Fields& fields) {
  std::string text;
  for (const Field& field : fields) {
    std::string value = field.value;
    std::replace_if(
        value.begin(), value.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
    text += field.name + '\t' + value + '\n';
  }
  return text;
}

Fields unpacked(std::string_view text) {
  Fields fields;
  while (!text.empty()) {
    const std::size_t tab = text.find('\t');
    const std::size_t end = text.find('\n', tab);
    fields.push_back({std::string(text.substr(0, tab)), std::string(text.substr(tab + 1, end - tab - 1))});
    text.remove_prefix(end + 1);
  }
  return fields;
}

// Number of bytes that is sufficient for the fields of a typical call. A call with many packed sequences needs more.
constexpr std::size_t kUsualRoom = 2048;

constexpr const char* kNumber = "call number";
// Name of the first field of a refusal. Its value is the error code, and the value of the second field is the error
// text.
constexpr const char* kRefused = "refused";

Fields refusal(ErrorCode code, const char* text) {
  return {{kRefused, fmt::to_string(static_cast<int>(code))}, {"", text}};
}

ErrorCode code_of(const Field& refusal) {
  for (const ErrorCode code : {ErrorCode::kUnsupported, ErrorCode::kInternal}) {
    if (refusal.value == fmt::to_string(static_cast<int>(code))) return code;
  }
  return ErrorCode::kInvalidArgument;
}

/// Gathers one message of every rank. If this rank is interrupted, the ring fails, because other ranks may already have
/// received this rank's message and may continue with the call. After an Error, the transport decides whether the ring
/// can still be used.
void gather(Transport& transport, std::span<const std::byte> mine, std::span<std::byte> all) {
  try {
    transport.all_gather(mine, all);
  } catch (const cpu::Interrupted&) {
    transport.fail(kInterrupted);
    throw;
  }
}

/// Returns the fields of every rank, in the order of ranks. Returns only after all ranks have called.
std::vector<Fields> exchange_fields(Transport& transport, const Fields& mine) {
  const auto num_ranks = static_cast<std::size_t>(transport.size());
  const std::string text = packed(mine);
  const std::uint64_t length = text.size();
  std::size_t room = kUsualRoom;  // number of bytes for the text; a record consists of the text's length and the text
  std::string record, records;
  std::uint64_t longest = 0;
  const auto length_of = [&](std::size_t rank) {
    std::uint64_t its = 0;
    std::memcpy(&its, records.data() + rank * record.size(), sizeof(its));
    return its;
  };
  do {  // There are at most two iterations. The second one runs if the text of a rank is longer than `room`.
    room = std::max<std::size_t>(room, longest);
    record.assign(sizeof(length) + room, '\0');
    std::memcpy(record.data(), &length, sizeof(length));
    std::copy_n(text.begin(), std::min(text.size(), room), record.begin() + sizeof(length));
    records.assign(record.size() * num_ranks, '\0');
    gather(transport, std::as_bytes(std::span(record)), std::as_writable_bytes(std::span(records)));
    for (std::size_t rank = 0; rank < num_ranks; ++rank) longest = std::max(longest, length_of(rank));
  } while (longest > room);

  std::vector<Fields> by_rank;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const std::string_view all = records;
    by_rank.push_back(unpacked(all.substr(rank * record.size() + sizeof(length), length_of(rank))));
  }
  return by_rank;
}

/// @throws Error if the call numbers of the ranks, which are their first fields, differ.
void require_same_number(const std::vector<Fields>& by_rank) {
  const Field& first = by_rank.front().front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const Field& other = by_rank[rank].front();
    if (other.value == first.value) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} on rank {}, allowed {} as on rank 0: one of these ranks has skipped a call of the ring",
                    kNumber, other.value, rank, first.value));
  }
}

/// @throws Error with the code and text of the first rank that refuses, if there is one.
void throw_refusal(const std::vector<Fields>& by_rank) {
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Fields& fields = by_rank[rank];
    if (fields.size() < 2 || fields[0].name != kRefused) continue;
    throw Error(code_of(fields[0]), fmt::format("{} (rank {})", fields[1].value, rank));
  }
}

void require_same(const std::vector<Fields>& by_rank) {
  const Fields& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const Fields& other = by_rank[rank];
    for (std::size_t n = 0; n < std::max(first.size(), other.size()); ++n) {
      const Field none = {n < first.size() ? first[n].name : other[n].name, "none"};
      const Field& a = n < first.size() ? first[n] : none;
      const Field& b = n < other.size() ? other[n] : none;
      if (a.name == b.name && (a.value == b.value || a.name.starts_with(kOwn))) continue;
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} on rank {}, allowed {} as on rank 0", a.name,
                                                           a.name == b.name ? b.value : "none", rank, a.value));
    }
  }
}

Fields checked(const std::function<Fields()>& check) {
  try {
    return check();
  } catch (const Error& error) {
    return refusal(error.code(), error.what());
    // For example if memory is exhausted; the other ranks must still receive a message.
  } catch (const std::exception& error) {
    return refusal(ErrorCode::kInternal, error.what());
  }
}

}  // namespace

std::vector<Fields> agree(Transport& transport, const std::function<Fields()>& check) {
  std::vector<Fields> by_rank = exchange_fields(transport, checked(check));
  throw_refusal(by_rank);
  require_same(by_rank);
  return by_rank;
}

std::vector<Fields> agree_on_next_call(Transport& transport, const std::function<Fields()>& check) {
  Fields mine = {{kNumber, fmt::to_string(transport.next_call())}};
  std::ranges::move(checked(check), std::back_inserter(mine));
  std::vector<Fields> by_rank = exchange_fields(transport, mine);
  require_same_number(by_rank);
  for (Fields& fields : by_rank) fields.erase(fields.begin());
  throw_refusal(by_rank);
  require_same(by_rank);
  return by_rank;
}

void refuse(Transport& transport, const Error& error) {
  (void)agree_on_next_call(transport, [&]() -> Fields { throw error; });
  throw error;  // unreachable, because agree_on_next_call() throws
}

const std::string& value_of(const Fields& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found == fields.end()) throw Error(ErrorCode::kInternal, fmt::format("ring: no rank has sent its {}", name));
  return found->value;
}

}  // namespace attend::ring
