// What a helper process does with formats that are good, bad, endless and hostile.
#include "engine/format/helper/format_helper.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/fake_library.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

using testing::MakeFakeLibrary;

using testing::RegexOf;
using testing::SmallVocabulary;

constexpr milliseconds kAmple{30'000};

// Processes whose parent is `pid`.
int ChildrenOf(pid_t pid) {
  int children = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");
    if (name_end == std::string::npos) continue;
    // After the name: the state, then the parent.
    if (std::stol(text.substr(name_end + 4)) == pid) ++children;
  }
  return children;
}

class FormatHelperTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

  void Start(FormatHelperOptions options) {
    options.make_library = MakeFakeLibrary;
    auto started = FormatHelper::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    helper_ = *std::move(started);
    ASSERT_TRUE(helper_->SetVocabulary(SmallVocabulary()).ok());
  }

  absl::StatusOr<std::string> Compile(const std::string& source, milliseconds limit = kAmple,
                                      Clock::time_point deadline = Clock::time_point::max()) {
    return helper_->Compile(RegexOf(source), limit, deadline);
  }

  // It goes on, and leaves no processes behind.
  void ExpectWell() {
    const auto compiled = Compile("good");
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    EXPECT_EQ(*compiled, "compiled good");
    EXPECT_TRUE(Eventually([this] { return ChildrenOf(helper_->pid()) == 0; }));
  }

  std::unique_ptr<FormatHelper> helper_;
};

TEST_F(FormatHelperTest, CompilesOneAfterTheOther) {
  for (int i = 0; i < 20; ++i) ExpectWell();
}

TEST_F(FormatHelperTest, CompilesSeveralAtATime) {
  std::vector<std::thread> threads;
  std::vector<absl::Status> ended(8);
  const Clock::time_point begin = Clock::now();
  for (absl::Status& status : ended) {
    threads.emplace_back([&] { status = Compile("pause").status(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
  EXPECT_LT(Clock::now() - begin, milliseconds(300) * ended.size());
  ExpectWell();
}

TEST_F(FormatHelperTest, LongFormatsAndResultsComeWhole) {
  const std::string source(200'000, 'y');
  const auto compiled = Compile(source);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(*compiled, "compiled " + source);
  EXPECT_EQ(Compile("large").value_or("").size(), size_t{1} << 20);
}

// bad input: Formats of answers | one that takes longer to compile than it may |
//   DEADLINE_EXCEEDED, FORMAT_TOO_SLOW; its process is killed, others are compiled
TEST_F(FormatHelperTest, WhatTakesTooLongIsKilled) {
  const auto compiled = Compile("sleep", milliseconds(100));
  EXPECT_EQ(compiled.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Reason(compiled.status()), "FORMAT_TOO_SLOW");
  ExpectWell();
}

TEST_F(FormatHelperTest, WhoDoesNotWaitAnyMoreLeavesNoProcess) {
  const auto compiled = Compile("sleep", kAmple, Clock::now() + milliseconds(50));
  EXPECT_EQ(Reason(compiled.status()), "DEADLINE_QUEUED");
  ExpectWell();
}

// bad input: Formats of answers | one that takes more memory to compile than it may |
//   RESOURCE_EXHAUSTED, FORMAT_TOO_LARGE; others are compiled
TEST_F(FormatHelperTest, WhatTakesTooMuchMemoryIsRefused) {
#ifdef ETA_SANITIZED
  GTEST_SKIP() << "sanitizers fork and trace";
#endif
  const auto compiled = Compile("eat");
  EXPECT_EQ(compiled.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Reason(compiled.status()), "FORMAT_TOO_LARGE");
  ExpectWell();
}

TEST_F(FormatHelperTest, ResultsHaveALimit) {
  Start({.result_bytes = 100'000});
  EXPECT_EQ(Reason(Compile("large").status()), "FORMAT_TOO_LARGE");
  ExpectWell();
}

// bad input: Formats of answers | one at which the library fails, or which it refuses |
//   INVALID_ARGUMENT, the field named; what the library says stands in no log
TEST_F(FormatHelperTest, WhatTheLibraryRefusesOrDiesOfIsInvalid) {
  const auto refused = Compile("invalid");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(refused.status()).field, "format");
  EXPECT_EQ(GetErrorDetail(refused.status()).unlogged, "not?? a format");
#ifndef ETA_SANITIZED
  const auto died = Compile("crash");
  EXPECT_EQ(died.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(died.status()).unlogged, "compiling it ended with signal 11");
#endif
  ExpectWell();
}

TEST_F(FormatHelperTest, WithoutTheHelperFormatsAreUnavailable) {
  std::thread waits(
      [this] { EXPECT_EQ(Reason(Compile("sleep").status()), "FORMATS_UNAVAILABLE"); });
  ASSERT_TRUE(Eventually([this] { return ChildrenOf(helper_->pid()) == 1; }));
  kill(helper_->pid(), SIGKILL);
  waits.join();
  for (int i = 0; i < 3; ++i) {
    const auto compiled = Compile("good");
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(compiled.status()), "FORMATS_UNAVAILABLE");
  }
}

TEST_F(FormatHelperTest, IgnoresTheSignalsOfAStop) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) kill(helper_->pid(), signal);
  ExpectWell();
}

TEST_F(FormatHelperTest, EndsWithItsOwner) {
  std::thread waits([this] { Compile("sleep").IgnoreError(); });
  ASSERT_TRUE(Eventually([this] { return ChildrenOf(helper_->pid()) == 1; }));
  const pid_t pid = helper_->pid();
  kill(pid, SIGSTOP);  // it cannot do anything for it by itself
  kill(pid, SIGKILL);
  waits.join();
  helper_.reset();
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(FormatHelperTest, HasNothingOpenOfTheServer) {
  ExpectWell();
  int open = 0;
  const std::string folder = "/proc/" + std::to_string(helper_->pid()) + "/fd";
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++open;
  EXPECT_EQ(open, 5);  // three times nothing, the server's socket, and news of children
}

TEST_F(FormatHelperTest, GivesWayToAServerThatGivesWay) {
  // A level is one thread's, and what it starts has it too.
  std::thread([this] {
    [[maybe_unused]] const int level = nice(3);
    const int server = getpriority(PRIO_PROCESS, 0);
    Start({});
    ExpectWell();
    EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(helper_->pid())),
              std::min(server + 5, 19));
  }).join();
}

TEST_F(FormatHelperTest, GivesUpRights) {
  // Told apart by the exit of whoever calls them.
  Start({.harden_child = [] { raise(SIGUSR1); }});
  const auto refused = Compile("good");
  EXPECT_EQ(GetErrorDetail(refused.status()).unlogged, "compiling it ended with signal 10")
      << refused.status();
  auto started =
      FormatHelper::Start({.harden_helper = [] { _exit(0); }, .make_library = MakeFakeLibrary});
  ASSERT_TRUE(started.ok());
  helper_ = *std::move(started);
  EXPECT_TRUE(Eventually([this] { return !helper_->SetVocabulary(SmallVocabulary()).ok(); }));
}

}  // namespace
}  // namespace eta
