// Tables that describe the members of structs of ints, such as the tile sizes with which kernels are compiled. Each
// family has a table below its struct. A row of the table describes one member: its name, the name of a Config
// constant, and a pointer to the member. (A Config is the struct of compile-time constants of a kernel.) Three results
// are computed from the table: the Config constants, the names for `attend sweep` and for explanations, and the
// position of each member in the variant. For example:
//
//   struct Tile { int warps, min_blocks, overlaps; int threads() const; };
//   inline constexpr Field<Tile> kTileFields[] = {
//       {"warps", "kWarps", number<&Tile::warps>},         // sweepable; kernels read it
//       {nullptr, "kThreads", number<&Tile::threads>},     // derived from other members
//       {"min_blocks", nullptr, unread<&Tile::min_blocks>},
//       {"overlap", "kOverlap", flag<&Tile::overlaps>}};   // an int in the struct, a bool in the Config
//   static_assert(covers<Tile>(kTileFields));              // fails if a member has no row
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/config_enums.hpp"
#include "cuda/launch/facts.hpp"

namespace attend::cuda {

/// A member of a family's variant. `attend sweep` can change it, and explanations print it.
struct Tunable {
  std::string name;  ///< name of the member, e.g. "block_m"
  std::size_t at;    ///< index of the member in Variant::ints()
  /// If the member is an enumeration, contains the names of its enumerators in the order of their values. Otherwise
  /// empty.
  std::vector<std::string> enumerators = {};

  /// If `value` is not allowed, returns a description of the allowed values. Otherwise returns an empty string.
  /// @param present  value of the member in the variant that the family chose
  [[nodiscard]] std::string allowed_instead_of(std::int32_t value, std::int32_t present) const;
};

using ConstantValue = decltype(Constant::value);

/// Describes how the value of a row is computed from the struct.
template <class Struct>
struct Number {
  /// Value of `at` if the row is not a data member, but is computed from other members.
  static constexpr std::size_t kFollows = SIZE_MAX;

  std::size_t at;  ///< index of the member among the ints of the struct, or kFollows
  ConstantValue (*value)(const Struct&) = nullptr;
  /// Returns the names of the enumerators; null if the member is not an enumeration.
  std::vector<std::string> (*enumerators)() = nullptr;
};

/// One row of a table.
template <class Struct>
struct Field {
  const char* name;      ///< name for `attend sweep` and explanations; null hides the row from them
  const char* constant;  ///< name of the Config constant; null if no kernel reads it
  Number<Struct> number;
};

template <class Struct>
using IntsOf = std::array<std::int32_t, sizeof(Struct) / sizeof(std::int32_t)>;

/// A pointer to a member of a struct. With several pointers, each one selects a member of the previous member. The last
/// pointer may point to a member function.
template <auto kFirst, auto... kRest>
class Path {
  template <class Pointer>
  struct Owner;
  template <class Of, class Member>
  struct Owner<Member Of::*> {
    using Type = Of;
  };

 public:
  using Struct = typename Owner<decltype(kFirst)>::Type;

  [[nodiscard]] static constexpr decltype(auto) of(auto& whole) { return follow(whole, kFirst, kRest...); }

  /// True if the path ends in a data member, false if it ends in a member function.
  static constexpr bool kIsMember = std::is_lvalue_reference_v<decltype(Path::of(std::declval<Struct&>()))>;

  /// Returns the index of the member's first int, counted from the start of the struct. Returns kFollows for a member
  /// function.
  [[nodiscard]] static constexpr std::size_t place() {
    if constexpr (kIsMember) {
      using Part = std::remove_reference_t<decltype(of(std::declval<Struct&>()))>;
      auto marked = std::bit_cast<Struct>(IntsOf<Struct>{});
      IntsOf<Part> marks = {};
      marks.fill(-1);
      of(marked) = std::bit_cast<Part>(marks);
      const auto ints = std::bit_cast<IntsOf<Struct>>(marked);
      return static_cast<std::size_t>(std::find(ints.begin(), ints.end(), -1) - ints.begin());
    } else {
      return Number<Struct>::kFollows;
    }
  }

 private:
  static constexpr decltype(auto) follow(auto& part, auto pointer, auto... more) {
    if constexpr (sizeof...(more) == 0) {
      return std::invoke(pointer, part);
    } else {
      return follow(std::invoke(pointer, part), more...);
    }
  }
};

/// Describes a member that no kernel reads. It has no Config constant.
template <auto kFirst, auto... kRest>
constexpr Number<typename Path<kFirst, kRest...>::Struct> unread = {Path<kFirst, kRest...>::place()};

/// Describes a member whose Config constant has the same value, either an integer or an enumerator.
template <auto kFirst, auto... kRest>
constexpr Number<typename Path<kFirst, kRest...>::Struct> number = [] {
  using Struct = typename Path<kFirst, kRest...>::Struct;
  using Value = std::remove_cvref_t<decltype(Path<kFirst, kRest...>::of(std::declval<const Struct&>()))>;
  Number<Struct> made = {Path<kFirst, kRest...>::place(), [](const Struct& whole) -> ConstantValue {
                           const Value value = Path<kFirst, kRest...>::of(whole);
                           if constexpr (std::is_enum_v<Value>) {
                             return enum_constant(value);
                           } else {
                             return std::int64_t{value};
                           }
                         }};
  if constexpr (std::is_enum_v<Value>) made.enumerators = enumerators<Value>;
  return made;
}();

/// Describes a member whose Config constant is a bool: true if the member is not 0.
template <auto kFirst, auto... kRest>
constexpr Number<typename Path<kFirst, kRest...>::Struct> flag = {
    Path<kFirst, kRest...>::place(), [](const typename Path<kFirst, kRest...>::Struct& whole) -> ConstantValue {
      return Path<kFirst, kRest...>::of(whole) != 0;
    }};

/// Returns whether the table is complete. Each int of the struct must have exactly one row, except the ints that the
/// struct inherits from Facts. Each row with a name must be a data member. Each row with a Config constant must have a
/// function that computes the value.
template <class Struct>
[[nodiscard]] constexpr bool covers(std::span<const Field<Struct>> fields) {
  IntsOf<Struct> rows = {};
  if constexpr (std::is_base_of_v<Facts, Struct>) std::fill_n(rows.begin(), IntsOf<Facts>().size(), 1);
  for (const Field<Struct>& field : fields) {
    const bool is_member = field.number.at != Number<Struct>::kFollows;
    if (is_member) ++rows.at(field.number.at);
    if (field.name != nullptr && !is_member) return false;
    if ((field.constant != nullptr) != (field.number.value != nullptr)) return false;
  }
  return std::all_of(rows.begin(), rows.end(), [](std::int32_t count) { return count == 1; });
}

/// Returns the constants of a Config. They begin with the constants of `facts` and of the options in `taken`, followed
/// by the constants of the table.
template <class Struct>
[[nodiscard]] std::vector<Constant> config_of(const Facts& facts, std::int32_t taken,
                                              std::span<const Field<Struct>> fields, const Struct& numbers) {
  std::vector<Constant> constants = constants_of(facts, taken, {});
  for (const Field<Struct>& field : fields) {
    if (field.constant != nullptr) constants.push_back({field.constant, field.number.value(numbers)});
  }
  return constants;
}

/// Returns the tunable members: the rows that have a name, sorted by their position in the struct.
/// @param first   index in the variant of the first int of the struct
/// @param prefix prefix that is added to each name
template <class Struct>
[[nodiscard]] std::vector<Tunable> tunables_of(std::span<const Field<Struct>> fields, std::size_t first = 0,
                                               const std::string& prefix = "") {
  std::vector<Tunable> tunables;
  for (const Field<Struct>& field : fields) {
    if (field.name == nullptr) continue;
    tunables.push_back({prefix + field.name, first + field.number.at});
    if (field.number.enumerators != nullptr) tunables.back().enumerators = field.number.enumerators();
  }
  std::sort(tunables.begin(), tunables.end(), [](const Tunable& a, const Tunable& b) { return a.at < b.at; });
  return tunables;
}

}  // namespace attend::cuda
