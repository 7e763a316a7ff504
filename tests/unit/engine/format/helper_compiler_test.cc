#include "engine/format/compiler/helper_compiler.h"

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/fake_library.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using testing::MakeFakeLibrary;

using testing::RegexOf;
using testing::SmallVocabulary;

constexpr Clock::time_point kNever = Clock::time_point::max();

class HelperCompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = FormatHelper::Start({.make_library = MakeFakeLibrary});
    ASSERT_TRUE(started.ok()) << started.status();
    helper_ = *std::move(started);
    auto made = HelperCompiler::Create(
        {.compile_timeout = milliseconds(5000), .cache_bytes = 4000, .max_compiling = 2}, *helper_,
        SmallVocabulary(), MakeFakeLibrary);
    ASSERT_TRUE(made.ok()) << made.status();
    compiler_ = *std::move(made);
  }

  std::unique_ptr<FormatHelper> helper_;
  std::unique_ptr<FormatCompiler> compiler_;
};

TEST_F(HelperCompilerTest, KeepsWhatItCompiledByTenant) {
  EXPECT_EQ(compiler_->Find("a", RegexOf("x")), nullptr);
  const auto first = compiler_->Compile("a", RegexOf("x"), kNever);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->format(), RegexOf("x"));
  EXPECT_EQ(compiler_->Find("a", RegexOf("x")), *first);
  EXPECT_EQ(compiler_->Compile("a", RegexOf("x"), kNever).value_or(nullptr), *first);
  EXPECT_EQ(compiler_->Find("b", RegexOf("x")), nullptr);
  EXPECT_NE(compiler_->Compile("b", RegexOf("x"), kNever).value_or(nullptr), *first);
  // Whatever differs is another format.
  AnswerFormat other = RegexOf("x");
  other.reasoning_end = "</think>";
  EXPECT_EQ(compiler_->Find("a", other), nullptr);
}

TEST_F(HelperCompilerTest, ForgetsWhatTheCacheHasNoRoomFor) {
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(compiler_->Compile("a", RegexOf("x" + std::to_string(i)), kNever).ok());
  }
  EXPECT_EQ(compiler_->Find("a", RegexOf("x0")), nullptr);
  EXPECT_NE(compiler_->Find("a", RegexOf("x39")), nullptr);
}

TEST_F(HelperCompilerTest, EqualFormatsAtOnceAreCompiledOnce) {
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const CompiledFormat>> made(4);
  for (auto& one : made) {
    threads.emplace_back(
        [&] { one = compiler_->Compile("a", RegexOf("pause"), kNever).value_or(nullptr); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : made) {
    EXPECT_NE(one, nullptr);
    EXPECT_EQ(one, made[0]);
  }
}

TEST_F(HelperCompilerTest, WhatTheHelperSendsIsNotTrusted) {
  const auto garbage = compiler_->Compile("a", RegexOf("garbage"), kNever);
  EXPECT_EQ(garbage.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(compiler_->Compile("a", RegexOf("x"), kNever).ok());
}

TEST_F(HelperCompilerTest, ErrorsNameTheFieldOfTheKind) {
  const auto refused = compiler_->Compile("a", RegexOf("invalid"), kNever);
  EXPECT_EQ(refused.status().message(), "format.regex: cannot be enforced");
  EXPECT_EQ(GetErrorDetail(refused.status()).field, "format.regex");
  EXPECT_EQ(GetErrorDetail(refused.status()).unlogged, "not?? a format");
  const auto slow = compiler_->Compile("a", RegexOf("sleep"), Clock::now() + milliseconds(50));
  EXPECT_EQ(Reason(slow.status()), "DEADLINE_QUEUED");
}

TEST_F(HelperCompilerTest, WithoutTheHelperWhatIsKeptIsServed) {
  ASSERT_TRUE(compiler_->Compile("a", RegexOf("x"), kNever).ok());
  kill(helper_->pid(), SIGKILL);
  EXPECT_EQ(Reason(compiler_->Compile("a", RegexOf("y"), kNever).status()), "FORMATS_UNAVAILABLE");
  EXPECT_TRUE(compiler_->Compile("a", RegexOf("x"), kNever).ok());
}

}  // namespace
}  // namespace eta
