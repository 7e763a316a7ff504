#include "engine/format/compiler/format_cache.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace eta {
namespace {

class SizedFormat final : public CompiledFormat {
 public:
  explicit SizedFormat(size_t bytes) : bytes_(bytes) {}
  const AnswerFormat& format() const override { return format_; }
  std::unique_ptr<AnswerGuide> NewGuide(bool) const override { return nullptr; }
  absl::Status Check(std::string_view) const override { return absl::OkStatus(); }
  size_t bytes() const override { return bytes_; }

 private:
  const AnswerFormat format_;
  const size_t bytes_;
};

std::shared_ptr<const CompiledFormat> Of(size_t bytes) {
  return std::make_shared<SizedFormat>(bytes);
}

TEST(FormatCache, ForgetsTheLeastRecentlyUsed) {
  FormatCache cache(3500);
  for (const char* const key : {"a", "b", "c"}) cache.Insert(key, Of(1000));
  EXPECT_LE(cache.bytes(), 3500);
  EXPECT_NE(cache.Find("a"), nullptr);  // newer than b now
  cache.Insert("d", Of(1000));
  EXPECT_EQ(cache.Find("b"), nullptr);
  for (const char* const key : {"a", "c", "d"}) EXPECT_NE(cache.Find(key), nullptr) << key;
  EXPECT_LE(cache.bytes(), 3500);
}

TEST(FormatCache, AKeyIsThereOnce) {
  FormatCache cache(10'000);
  cache.Insert("a", Of(1000));
  const auto newer = Of(2000);
  cache.Insert("a", newer);
  EXPECT_EQ(cache.Find("a"), newer);
  EXPECT_LT(cache.bytes(), 3000);
}

TEST(FormatCache, WhatIsLargerThanAllOfItIsNotKept) {
  FormatCache cache(3000);
  cache.Insert("a", Of(1000));
  cache.Insert("b", Of(5000));
  EXPECT_EQ(cache.Find("b"), nullptr);
  EXPECT_NE(cache.Find("a"), nullptr);
  FormatCache none(0);
  none.Insert("a", Of(1));
  EXPECT_EQ(none.Find("a"), nullptr);
  EXPECT_EQ(none.bytes(), 0);
}

TEST(FormatCache, WhatIsForgottenLivesWhereItIsUsed) {
  FormatCache cache(1500);
  cache.Insert("a", Of(1000));
  const auto used = cache.Find("a");
  cache.Insert("b", Of(1000));
  EXPECT_EQ(cache.Find("a"), nullptr);
  EXPECT_EQ(used->bytes(), 1000u);
}

}  // namespace
}  // namespace eta
