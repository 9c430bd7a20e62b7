// Tests the boundary between C and C++: structs of older and newer callers, exceptions of every type, messages that are
// too long, and JSON.
#include "c/boundary.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "c/json.hpp"
#include "c/struct_sizes.hpp"

namespace {

/// A struct that had two fields in its first version. The library now has a third field.
struct Grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t added;
};

/// The same struct in a caller that is newer than the library.
struct Newer {
  Grown known;
  std::int64_t unknown;
};

}  // namespace

template <>
inline constexpr std::size_t attend::c::kFirstSize<Grown> = 16;

namespace attend::c {
namespace {

std::string refusal_of(const Grown* given) {
  attend_error error;
  const std::int32_t status = guarded(&error, [&] { read_struct("call", given); });
  EXPECT_EQ(status, error.code);
  return std::to_string(status) + " " + error.message;
}

TEST(ReadStruct, FieldsThatAnOlderCallerLacksAreZero) {
  // 99 lies after the end of the caller's struct, so it must not be read.
  const Grown given = {.struct_size = 16, .first = 5, .added = 99};
  const Grown read = read_struct("call", &given);
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.added, 0);
}

TEST(ReadStruct, ANewerCallersFieldsMayBeZeroOnly) {
  Newer given = {.known = {.struct_size = sizeof(Newer), .first = 5, .added = 6}, .unknown = 0};
  EXPECT_EQ(read_struct("call", &given.known).added, 6);
  given.unknown = std::int64_t{1} << 62;
  EXPECT_EQ(
      refusal_of(&given.known),
      "2 call.struct_size: 32 with byte 31 not 0, allowed 0 beyond the 24 bytes that attend " ATTEND_VERSION_STRING
      " defines");
}

TEST(ReadStruct, OtherSizesAreRefused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{15}, std::size_t{4097}, ~std::size_t{0}}) {
    const Grown given = {.struct_size = size, .first = 0, .added = 0};
    EXPECT_EQ(refusal_of(&given), "1 call.struct_size: " + std::to_string(size) + ", allowed 16 to 4096");
  }
  EXPECT_EQ(refusal_of(nullptr), "1 call: null, allowed a struct");
}

TEST(FillStruct, WritesTheCallersBytesAndNoOthers) {
  Newer given = {.known = {.struct_size = 1, .first = 2, .added = 3}, .unknown = 4};
  fill_struct(&given.known, 16, {.struct_size = 0, .first = 7, .added = 8});
  EXPECT_EQ(given.known.struct_size, 16);
  EXPECT_EQ(given.known.first, 7);
  EXPECT_EQ(given.known.added, 3);
  fill_struct(&given.known, sizeof(Newer), {.struct_size = 0, .first = 7, .added = 8});
  EXPECT_EQ(given.known.struct_size, sizeof(Newer));
  EXPECT_EQ(given.known.added, 8);
  EXPECT_EQ(given.unknown, 0);
  fill_struct<Grown>(nullptr, 16, {});
}

TEST(Guarded, EveryExceptionBecomesANumberAndALine) {
  attend_error error;
  EXPECT_EQ(guarded(&error, [] { throw Error(ErrorCode::kIo, "io"); }), ATTEND_IO);
  EXPECT_STREQ(error.message, "io");
  EXPECT_EQ(guarded(&error, [] { throw Error(ErrorCode::kUnsupported, "no"); }), ATTEND_UNSUPPORTED);
  EXPECT_EQ(guarded(&error, [] { throw Error(ErrorCode::kMissingHardware, "no GPU"); }), ATTEND_MISSING_HARDWARE);
  EXPECT_EQ(guarded(&error, [] { throw Error(ErrorCode::kInternal, "x"); }), ATTEND_INTERNAL);
  EXPECT_EQ(guarded(&error, [] { throw std::bad_alloc(); }), ATTEND_OUT_OF_MEMORY);
  EXPECT_STREQ(error.message, "out of memory");
  EXPECT_EQ(guarded(&error, [] { throw std::length_error("too long"); }), ATTEND_INTERNAL);
  EXPECT_STREQ(error.message, "too long");
  EXPECT_EQ(guarded(&error, [] { throw 5; }), ATTEND_INTERNAL);
  EXPECT_EQ(error.code, ATTEND_INTERNAL);
  EXPECT_EQ(guarded(&error, [] {}), ATTEND_OK);
  EXPECT_EQ(error.code, ATTEND_OK);
  EXPECT_STREQ(error.message, "");
  EXPECT_EQ(guarded(nullptr, [] { throw std::bad_alloc(); }), ATTEND_OUT_OF_MEMORY);
}

TEST(Tell, CutsALongLineBetweenCharacters) {
  attend_error error;
  const std::size_t most = sizeof error.message - 1;
  tell(&error, ATTEND_IO, std::string(most, 'x'));
  EXPECT_EQ(std::string(error.message), std::string(most, 'x'));
  tell(&error, ATTEND_IO, std::string(5000, 'x'));
  EXPECT_EQ(std::string(error.message), std::string(most, 'x'));
  std::string line(most - 2, 'x');
  line += "\xe2\x82\xac";  // a character of three bytes; the message has room for only two
  tell(&error, ATTEND_IO, line);
  EXPECT_EQ(std::string(error.message), std::string(most - 2, 'x'));
}

TEST(Json, EscapesAndNamesWhatItLacks) {
  EXPECT_EQ(json("a \"b\" \\ \n \x01 \xc3\xa4"), "\"a \\\"b\\\" \\\\ \\u000a \\u0001 \xc3\xa4\"");
  EXPECT_EQ(json(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json(0.1), "0.1");
  EXPECT_EQ(json(std::vector<std::string>{"a", "b"}), "[\"a\", \"b\"]");
  JsonObject object;
  object.add("n", std::size_t{5}).add("is", true).add("list", std::vector<std::string>{});
  EXPECT_EQ(object.text(), "{\"n\": 5, \"is\": true, \"list\": []}");
}

}  // namespace
}  // namespace attend::c
