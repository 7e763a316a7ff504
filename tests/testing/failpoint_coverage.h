// Which failpoints the tests of this process struck, in this process and in servers that it
// started. When all tests have run, each name of the catalogue must be among them.
#pragma once

#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "kernels/failpoint.h"

namespace eta::testing {

class FailpointCoverage final : public ::testing::Environment {
 public:
  // One name a line.
  static void Add(const std::string& names) {
    const std::lock_guard lock(mutex_);
    std::istringstream lines(names);
    for (std::string name; lines >> name;) struck_.insert(name);
  }

  // A run of a part of the tests, or one in which some could not run, proves nothing.
  void TearDown() override {
    const ::testing::UnitTest& run = *::testing::UnitTest::GetInstance();
    if (run.test_to_run_count() != run.total_test_count() || run.skipped_test_count() > 0) return;
    for (size_t i = 0; i < kNumFailpoints; ++i) {
      if (FailpointStrikes(static_cast<Failpoint>(i)) > 0) continue;
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(struck_.count(std::string(kFailpointNames[i])), 1u)
          << "no test strikes the failpoint " << kFailpointNames[i];
    }
  }

 private:
  static inline std::mutex mutex_;
  static inline std::set<std::string> struck_;
};

}  // namespace eta::testing
