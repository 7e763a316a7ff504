// The built server with an intruder's code in it (forbidden_calls.cc): what that code cannot do,
// while the server serves on.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "service/process/process_hardening.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::string kRefused = std::to_string(EPERM);

class Intruder : public ::testing::Test {
 protected:
  std::unique_ptr<Replica> Start(const std::vector<std::string>& flags) const {
    setenv("LD_PRELOAD", ETA_FORBIDDEN_CALLS_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
    setenv("ETA_INTRUDER_REPORT", report_.c_str(), 1);     // NOLINT(concurrency-mt-unsafe)
    // The sanitizer's runtime would not let a library be loaded before it.
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);  // NOLINT(concurrency-mt-unsafe)
    auto server = std::make_unique<Replica>(model_.path(), "", flags);
    for (const char* name : {"LD_PRELOAD", "ETA_INTRUDER_REPORT", "ASAN_OPTIONS"}) {
      unsetenv(name);  // NOLINT(concurrency-mt-unsafe)
    }
    return server;
  }

  // What the intruder could do and what not. Without "end" it did not get so far.
  std::map<std::string, std::string> Intrude(Replica& server) const {
    server.process().Signal(SIGUSR2);
    std::map<std::string, std::string> results;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!results.contains("end") && server.process().Running() &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::istringstream lines(ReadFile(report_));
      for (std::string line; std::getline(lines, line);) {
        const size_t space = line.find(' ');
        results[line.substr(0, space)] = space == line.npos ? "" : line.substr(space + 1);
      }
    }
    return results;
  }

  const TinyModel model_;
  const TempFolder folder_;
  const std::string report_ = folder_.path() + "/report";
};

TEST_F(Intruder, StartsNoProgramTracesNothingAndLeavesNoCoreWhileTheServerServes) {
  if (!FiltersByDefault(false)) GTEST_SKIP() << "sanitizers fork and trace";
  const auto server = Start({});
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  const auto results = Intrude(*server);
  EXPECT_THAT(results, AllOf(Contains(Pair("core_limit", "0")), Contains(Pair("dumpable", "0")),
                             Contains(Pair("no_new_privs", "1")), Contains(Pair("filter", "2")),
                             Contains(Pair("file", "done")), Contains(Pair("tcp", "done"))));
  for (const char* what : {"raw_socket", "packet_socket", "ptrace", "mount", "written_code",
                           "file_in_memory", "process", "program"}) {
    EXPECT_THAT(results, Contains(Pair(what, kRefused)));
  }
  EXPECT_TRUE(results.contains("end"));
  server->Generate("");
  EXPECT_TRUE(server->status.ok()) << server->status.error_message();
  server->process().Signal(SIGTERM);
  EXPECT_EQ(server->process().AwaitExit().code, 0);
}

TEST_F(Intruder, IsHeldByTheFilterWhereItIsOnAndTheLogSaysWhereItIsOff) {
  const auto server = Start({"--system_call_filter=off", "--allow_core_dumps"});
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  const auto results = Intrude(*server);
  EXPECT_THAT(results, Contains(Pair("dumpable", "1")));
  EXPECT_THAT(results, Contains(Pair("written_code", "done")));
  EXPECT_FALSE(results.contains("end"));  // it became another program
  EXPECT_THAT(server->process().AwaitExit().errors,
              AllOf(HasSubstr("--system_call_filter: "), HasSubstr("--allow_core_dumps: ")));
}

}  // namespace
}  // namespace eta::testing
