// Tables that describe structs of ints, such as the tiles that kernels are compiled for. A row has a name, a constant
// of the Config, and a member. A family writes its table below its struct. Three things follow from the table: the
// Config constants in their order, the names for `attend sweep` and explanations, and the positions of the members in
// the variant.
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

/// A member of a family's variant that `attend sweep` can set and that explanations print.
struct Tunable {
  std::string name;                           ///< "block_m"
  std::size_t at;                             ///< index into Variant::ints()
  std::vector<std::string> enumerators = {};  ///< names by value if the member is an enumeration; otherwise empty

  /// Returns the text of the allowed values if `value` is not allowed; otherwise an empty string.
  /// @param present  its value in the family's own choice
  [[nodiscard]] std::string allowed_instead_of(std::int32_t value, std::int32_t present) const;
};

using ConstantValue = decltype(Constant::value);

/// Describes how to read a member as a constant of a Config.
template <class Struct>
struct Number {
  static constexpr std::size_t kFollows = SIZE_MAX;  ///< not a member: computed from members

  std::size_t at;  ///< index among the struct's ints, or kFollows
  ConstantValue (*value)(const Struct&) = nullptr;
  std::vector<std::string> (*enumerators)() = nullptr;  ///< names of the enumerators, if the member is an enumeration
};

/// A row of a table.
template <class Struct>
struct Field {
  const char* name;      ///< name for `attend sweep` and explanations; null hides the row from them
  const char* constant;  ///< name of the Config constant; null if no kernel reads it
  Number<Struct> number;
};

template <class Struct>
using IntsOf = std::array<std::int32_t, sizeof(Struct) / sizeof(std::int32_t)>;

/// A member of a struct. With more than one pointer, a member of its member. The last pointer may be a member function.
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

  /// Whether the path ends in a data member and not in a member function.
  static constexpr bool kIsMember = std::is_lvalue_reference_v<decltype(Path::of(std::declval<Struct&>()))>;

  /// Returns the index of the member's first int among the ints of the struct.
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

/// A member that no kernel reads.
template <auto kFirst, auto... kRest>
constexpr Number<typename Path<kFirst, kRest...>::Struct> unread = {Path<kFirst, kRest...>::place()};

/// A number or an enumerator, unchanged.
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

/// A number converted to a bool: true if it is not 0.
template <auto kFirst, auto... kRest>
constexpr Number<typename Path<kFirst, kRest...>::Struct> flag = {
    Path<kFirst, kRest...>::place(), [](const typename Path<kFirst, kRest...>::Struct& whole) -> ConstantValue {
      return Path<kFirst, kRest...>::of(whole) != 0;
    }};

/// Returns whether the table is complete. Every int of the struct, except the ints of its Facts, must have exactly one
/// row. Every row with a name must have an int, and every row with a constant must have a value.
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

/// Returns the constants of a Config: first the constants of the facts and of the options in `taken`, then those of the
/// table.
template <class Struct>
[[nodiscard]] std::vector<Constant> config_of(const Facts& facts, std::int32_t taken,
                                              std::span<const Field<Struct>> fields, const Struct& numbers) {
  std::vector<Constant> constants = constants_of(facts, taken, {});
  for (const Field<Struct>& field : fields) {
    if (field.constant != nullptr) constants.push_back({field.constant, field.number.value(numbers)});
  }
  return constants;
}

/// Returns the rows that have a name, in the order of the struct.
/// @param first  index of the struct's first int in the variant
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
