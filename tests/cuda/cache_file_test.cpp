// Tests the format of a cache entry. Reading must return what was written, and must refuse anything else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/jit/cache_folder.hpp"
#include "cuda/jit/disk_cache.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

const std::string kKey(32, 'a');

cuda::CacheEntry sample() {
  cuda::CacheEntry entry = {.log = "ptxas info: Used 40 registers\n", .cubin = {}, .seconds = 0.25};
  for (int i = 0; i < 300; ++i) entry.cubin.push_back(static_cast<std::byte>(i * 37));
  return entry;
}

bool refused(std::string_view bytes) {
  std::string why;
  const bool refusal = !cuda::decode_entry(bytes, kKey, why).has_value();
  EXPECT_EQ(why.empty(), !refusal);
  return refusal;
}

TEST(CacheFile, ComesBackWhole) {
  std::string why;
  const auto back = cuda::decode_entry(cuda::encode_entry(kKey, sample()), kKey, why);
  ASSERT_TRUE(back.has_value()) << why;
  EXPECT_EQ(back->log, sample().log);
  EXPECT_EQ(back->cubin, sample().cubin);
  EXPECT_EQ(back->seconds, 0.25);
}

TEST(CacheFile, EveryFlippedBitAndEveryLengthIsRefused) {
  const std::string good = cuda::encode_entry(kKey, sample());
  for (std::size_t at = 0; at < good.size(); ++at) {
    EXPECT_TRUE(refused(good.substr(0, at))) << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      EXPECT_TRUE(refused(bad)) << at << " bit " << bit;
    }
  }
  EXPECT_TRUE(refused(good + '\0'));
}

TEST(CacheFile, AnotherKeysEntryIsRefused) {
  std::string why;
  EXPECT_FALSE(cuda::decode_entry(cuda::encode_entry(std::string(32, 'b'), sample()), kKey, why));
  EXPECT_THAT(why, testing::HasSubstr("another kernel"));
}

TEST(CacheFolder, FollowsTheEnvironment) {
  const auto root = [](const char* own, const char* xdg, const char* home) {
    for (const auto& [name, value] : {std::pair{"ATTEND_CACHE_DIR", own}, {"XDG_CACHE_HOME", xdg}, {"HOME", home}}) {
      if (value == nullptr) {
        ::unsetenv(name);
      } else {
        ::setenv(name, value, 1);
      }
    }
    return cuda::cache_root_from_environment();
  };
  const char* home = std::getenv("HOME");
  const std::string former = home == nullptr ? "" : home;
  EXPECT_EQ(root("/a", "/x", "/h"), "/a");
  EXPECT_EQ(root("", "/x", "/h"), "/x/attend");
  EXPECT_EQ(root(nullptr, "relative", "/h"), "/h/.cache/attend");
  EXPECT_EQ(root(nullptr, nullptr, nullptr), "");
  if (home != nullptr) ::setenv("HOME", former.c_str(), 1);
}

}  // namespace
}  // namespace attend::test
