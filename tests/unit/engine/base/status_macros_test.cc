// An error returns early, once; a value is moved to where it is asked.
#include "engine/base/status_macros.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

class StatusMacrosTest : public ::testing::Test {
 protected:
  absl::Status Check(const absl::Status& status) {
    ++evaluations_;
    return status;
  }
  absl::StatusOr<std::unique_ptr<int>> Make(const absl::StatusOr<int>& value) {
    ++evaluations_;
    if (!value.ok()) return value.status();
    return std::make_unique<int>(*value);
  }

  const absl::Status error_ = absl::NotFoundError("no such thing");
  int evaluations_ = 0;
  bool went_on_ = false;
};

TEST_F(StatusMacrosTest, AnErrorIsReturnedOnce) {
  const auto call = [this](const absl::Status& status) -> absl::Status {
    RETURN_IF_ERROR(Check(status));
    went_on_ = true;
    return absl::OkStatus();
  };
  EXPECT_EQ(call(error_), error_);
  EXPECT_FALSE(went_on_);
  EXPECT_EQ(evaluations_, 1);
  EXPECT_TRUE(call(absl::OkStatus()).ok());
  EXPECT_TRUE(went_on_);
  EXPECT_EQ(evaluations_, 2);
}

TEST_F(StatusMacrosTest, AnErrorInPlaceOfAValueIsReturnedOnce) {
  const auto call = [this]() -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const auto value, Make(error_));
    went_on_ = true;
    return std::to_string(*value);
  };
  EXPECT_EQ(call().status(), error_);
  EXPECT_FALSE(went_on_);
  EXPECT_EQ(evaluations_, 1);
}

TEST_F(StatusMacrosTest, AValueIsMovedToADeclarationAndToWhatCanBeAssignedTo) {
  struct Made {
    std::map<std::string, std::unique_ptr<int>> named;
  };
  const auto call = [this](Made& made) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<int> first, Make(1));
    ASSIGN_OR_RETURN(made.named["second"], Make(2));
    made.named["first"] = std::move(first);
    ASSIGN_OR_RETURN(first, Make(3));
    made.named["third"] = std::move(first);
    return absl::OkStatus();
  };
  Made made;
  ASSERT_TRUE(call(made).ok());
  EXPECT_EQ(*made.named.at("first"), 1);
  EXPECT_EQ(*made.named.at("second"), 2);
  EXPECT_EQ(*made.named.at("third"), 3);
  EXPECT_EQ(evaluations_, 3);
}

TEST_F(StatusMacrosTest, AnErrorLeavesWhatWouldHaveBeenAssignedTo) {
  const auto call = [this](std::unique_ptr<int>& value) -> absl::Status {
    ASSIGN_OR_RETURN(value, Make(error_));
    return absl::OkStatus();
  };
  auto value = std::make_unique<int>(7);
  EXPECT_EQ(call(value), error_);
  EXPECT_EQ(*value, 7);
}

TEST_F(StatusMacrosTest, WhatIsReadThroughAReferenceStays) {
  const absl::StatusOr<std::string> kept = std::string("a text that is too long to stand in place");
  const auto call = [&kept]() -> absl::StatusOr<size_t> {
    const auto read = [&kept]() -> const absl::StatusOr<std::string>& { return kept; };
    ASSIGN_OR_RETURN(const std::string text, read());
    return text.size();
  };
  EXPECT_EQ(*call(), kept->size());
}

TEST_F(StatusMacrosTest, AnExpressionMayHoldCommas) {
  const auto call = []() -> absl::StatusOr<size_t> {
    ASSIGN_OR_RETURN(const auto pairs, absl::StatusOr<std::map<int, int>>({{1, 2}, {3, 4}}));
    ASSIGN_OR_RETURN(const auto list, absl::StatusOr<std::vector<int>>(std::vector<int>{1, 2, 3}));
    return pairs.size() + list.size();
  };
  EXPECT_EQ(*call(), 5u);
}

}  // namespace
}  // namespace eta
