// Tests the .npy reader. The reader must accept files that NumPy writes, and must refuse unsupported files with a clear
// message.
#include "io/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "io/file.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

using io::NpyHeader;
using io::NpyRank;
using testing::AllOf;
using testing::HasSubstr;

/// Returns the header of a .npy file in format version 1.0, 2.0 or 3.0. The header is padded with only one newline,
/// because readers must not require more padding.
std::string with_dictionary(const std::string& dictionary, int version = 1) {
  const std::string text = dictionary + "\n";
  std::string bytes = "\x93NUMPY";
  bytes +=
      {static_cast<char>(version), '\0', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  if (version > 1) bytes += std::string(2, '\0');
  return bytes + text;
}

NpyHeader parse(const std::string& bytes) {
  return io::parse_npy_header(std::as_bytes(std::span(bytes)), "x.npy");
}

std::string refusal(const std::string& bytes) {
  try {
    (void)parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.what();
  }
  return "nothing was refused";
}

TEST(NpyHeader, ReadsWhatNumpyWrites) {
  const NpyHeader header =
      parse(with_dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 8, 512, 64), }"));
  EXPECT_EQ(header.dtype, DType::kF32);
  EXPECT_EQ(header.shape, (std::vector<std::int64_t>{2, 8, 512, 64}));
  EXPECT_EQ(parse(with_dictionary("{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }")).shape,
            std::vector<std::int64_t>{3});
  EXPECT_TRUE(parse(with_dictionary("{'descr': '|b1', 'fortran_order': False, 'shape': (), }")).shape.empty());
}

TEST(NpyHeader, ReadsOtherSpellingsOfTheSameLiteral) {
  for (const int version : {1, 2, 3}) {
    const std::string bytes = with_dictionary("{ \"shape\":(1,2) ,'fortran_order' : False,'descr':'<f8'}  ", version);
    const NpyHeader header = parse(bytes);
    EXPECT_EQ(header.dtype, DType::kF64);
    EXPECT_EQ(header.shape, (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(header.data_offset, static_cast<std::int64_t>(bytes.size()));
  }
}

TEST(NpyHeader, TakesBothSpellingsOfBfloat16) {
  EXPECT_EQ(parse(with_dictionary("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }")).dtype, DType::kBF16);
  EXPECT_EQ(parse(with_dictionary("{'descr': '|V2', 'fortran_order': False, 'shape': (1,), }")).dtype, DType::kBF16);
}

TEST(NpyHeader, RefusesTypesAndOrders) {
  const auto with_type = [](const std::string& descr) {
    return with_dictionary("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,), }");
  };
  for (const char* descr : {"'>f4'", "'<i4'", "'|O'", "'<u2'", "'<c8'", "'f4'", "'=f4'", "'|V4'", "'<f16'", "''"}) {
    EXPECT_THAT(refusal(with_type(descr)), AllOf(HasSubstr("x.npy"), HasSubstr(descr), HasSubstr("'<f4'"))) << descr;
  }
  EXPECT_THAT(refusal(with_type("[('a', '<f4')]")), HasSubstr("record"));
  EXPECT_THAT(refusal(with_dictionary("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }")),
              AllOf(HasSubstr("fortran_order True"), HasSubstr("C order")));
}

TEST(NpyHeader, RefusesMalformedHeaders) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not start"},
      {"PK\x03\x04", "does not start"},
      {"\x93NUMPY", "version 0"},
      {std::string("\x93NUMPY\x01\x00\x10", 9), "ends inside"},
      {std::string("\x93NUMPY\x04\x00\x10\x00", 10), "version 4"},
      {with_dictionary(good).substr(0, 40), "ends inside"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\x7f", 12), "bytes, allowed at most 65536"},
      {with_dictionary(""), "an early end"},
      {with_dictionary("[1, 2]"), "'{' there"},
      {with_dictionary("{}"), "without all its keys"},
      {with_dictionary(good.substr(0, good.size() - 2)), "a quoted string there"},
      {with_dictionary(good + "x"), "after the dictionary"},
      {with_dictionary("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"), "key 'descr'"},
      {with_dictionary("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }"), "fortran_order '0"},
      {with_dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (2), }"), "not a tuple"},
      {with_dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }"), "a size '-2'"},
      {with_dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }"), "a size '92233"},
      {with_dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,), }"), "not a tuple"},
      {with_dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1), }"), "more than 4"},
      {with_dictionary("{'descr': '<f4, 'fortran_order': False, 'shape': (2,), }"), "descr '<f4, '"},
  };
  for (const auto& [bytes, expected] : cases) EXPECT_THAT(refusal(bytes), HasSubstr(expected)) << bytes;
}

TEST(NpyHeader, MessagesStayOnOneLine) {
  EXPECT_EQ(refusal(with_dictionary("{'descr': '\n\x01<f4', 'fortran_order': False, 'shape': (2,), }")).find('\n'),
            std::string::npos);
}

TEST(NpyHeader, WrittenHeadersAreReadBack) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kBool}) {
    for (const auto& shape : {std::vector<std::int64_t>{}, {7}, {0, 3}, {2, 8, 512}, {2, 8, 512, 64}}) {
      const std::string bytes = io::npy_header(dtype, shape);
      EXPECT_EQ(bytes.size() % 64, 0U);
      EXPECT_EQ(parse(bytes), (NpyHeader{dtype, shape, static_cast<std::int64_t>(bytes.size())}));
    }
  }
}

TEST(NpyFile, RoundTripKeepsEveryByte) {
  const TempFolder folder;
  const std::vector<std::int64_t> shape = {1, 2, 3, 4};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    std::string data(static_cast<std::size_t>(24 * dtype_bytes(dtype)), '\0');
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(37 * i);
    write_file(folder / "x.npy", io::npy_header(dtype, shape) + data);
    const io::HostTensor tensor = io::read_npy(folder / "x.npy", NpyRank::kExact);
    EXPECT_EQ(tensor.dtype(), dtype);
    EXPECT_EQ(tensor.shape(), (Shape{1, 2, 3, 4}));
    EXPECT_EQ(std::memcmp(tensor.bytes().data(), data.data(), data.size()), 0);
  }
}

TEST(NpyFile, BoolsBecomeZeroAndOne) {
  const TempFolder folder;
  write_file(folder / "m.npy", io::npy_header(DType::kBool, std::vector<std::int64_t>{3}) + std::string("\0\1\x80", 3));
  const io::HostTensor mask = io::read_npy(folder / "m.npy", NpyRank::kBroadcast);
  EXPECT_EQ(std::memcmp(mask.bytes().data(), "\0\1\1", 3), 0);
}

TEST(NpyFile, LengthHasToFitToTheByte) {
  const TempFolder folder;
  const std::string header = io::npy_header(DType::kF32, std::vector<std::int64_t>{1, 1, 2, 2});
  for (const int bytes : {0, 15, 17}) {
    write_file(folder / "x.npy", header + std::string(bytes, 'a'));
    try {
      (void)io::read_npy(folder / "x.npy", NpyRank::kExact);
      ADD_FAILURE() << bytes;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("x.npy"), HasSubstr(std::to_string(bytes) + " bytes"), HasSubstr("16")));
    }
  }
}

TEST(NpyFile, SizesThatOverflowAreRefused) {
  const TempFolder folder;
  const std::int64_t huge = std::int64_t{1} << 62;
  write_file(folder / "x.npy", io::npy_header(DType::kF32, std::vector<std::int64_t>{huge, huge, huge, 4}));
  EXPECT_THROW((void)io::read_npy(folder / "x.npy", NpyRank::kExact), Error);
}

TEST(NpyFile, RanksGoWhereTheyBelong) {
  const TempFolder folder;
  const auto shape_of = [&](const std::vector<std::int64_t>& shape, NpyRank rank) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    write_file(folder / "x.npy", io::npy_header(DType::kF32, shape) + std::string(count * 4, '\0'));
    return io::read_npy(folder / "x.npy", rank).shape();
  };
  EXPECT_EQ(shape_of({2, 3}, NpyRank::kBroadcast), (Shape{1, 1, 2, 3}));
  EXPECT_EQ(shape_of({5, 1, 2, 3}, NpyRank::kBroadcast), (Shape{5, 1, 2, 3}));
  EXPECT_EQ(shape_of({2, 3, 4}, NpyRank::kLse), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(shape_of({2, 3, 4, 1}, NpyRank::kLse), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(shape_of({8}, NpyRank::kSlopes), (Shape{1, 8, 1, 1}));
  EXPECT_EQ(shape_of({2, 8}, NpyRank::kSlopes), (Shape{2, 8, 1, 1}));
  EXPECT_THROW(shape_of({2, 3, 4}, NpyRank::kExact), Error);
  EXPECT_THROW(shape_of({}, NpyRank::kBroadcast), Error);
  EXPECT_THROW(shape_of({2, 3}, NpyRank::kLse), Error);
  EXPECT_THROW(shape_of({2, 3, 4}, NpyRank::kSlopes), Error);
}

}  // namespace
}  // namespace attend::test
