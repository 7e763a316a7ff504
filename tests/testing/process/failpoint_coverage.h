// Records which failpoints the tests of this process struck in their servers, and in which files.
// When all tests have run, each name of the catalogue must be recorded with every source file that
// has it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/system/failpoint.h"
#include "tests/testing/base/temp_folder.h"

namespace eta::testing {

class FailpointCoverage final : public ::testing::Environment {
 public:
  // `may_skip` says whether tests may be skipped here. If tests were skipped, the coverage is not
  // checked.
  explicit FailpointCoverage(std::function<bool()> may_skip) : may_skip_(std::move(may_skip)) {}

  // Adds lines in the form of NameFailpointsIn.
  static void Add(const std::string& names) {
    const std::lock_guard lock(mutex_);
    std::istringstream lines(names);
    for (std::string line; std::getline(lines, line);) struck_.insert(line);
  }

  // The coverage is not checked either if only some tests ran.
  void TearDown() override {
    const ::testing::UnitTest& run = *::testing::UnitTest::GetInstance();
    if (run.test_to_run_count() != run.total_test_count()) return;
    if (run.skipped_test_count() > 0) {
      EXPECT_TRUE(may_skip_()) << run.skipped_test_count() << " tests were skipped";
      return;
    }
    const std::set<std::string> places = Places();
    EXPECT_GE(places.size(), kNumFailpoints);
    const std::lock_guard lock(mutex_);
    for (const std::string& place : places) {
      EXPECT_EQ(struck_.count(place), 1u) << "no test strikes the failpoint " << place;
    }
  }

 private:
  // The lines for all failpoints of the product.
  static std::set<std::string> Places() {
    std::map<std::string, std::string> names = {
#define ETA_FAILPOINT_NAMED(identifier, name) {#identifier, name},
        ETA_FAILPOINT_CATALOGUE(ETA_FAILPOINT_NAMED)
#undef ETA_FAILPOINT_NAMED
    };
    const std::regex place("ETA_FAILPOINT\\((k\\w+)\\)");
    std::set<std::string> places, found;
    for (const char* folder : {"kernels", "engine", "calibration", "service"}) {
      const std::filesystem::path root = std::string(ETA_SOURCE_DIR) + "/" + folder;
      for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
        const std::string source = file.path().filename();
        if (!file.is_regular_file() || source == "failpoint.h") continue;
        // Failpoints of a GPU are struck only on a machine with one: nth_failure_test, by
        // tests/cuda.sh.
        if (file.path().string().find("/kernels/cuda/") != std::string::npos) continue;
        const std::string text = ReadFile(file.path());
        for (std::sregex_iterator i(text.begin(), text.end(), place), end; i != end; ++i) {
          found.insert((*i)[1]);
          places.insert(names[(*i)[1]] + " " + source);
        }
      }
    }
    for (const auto& [identifier, name] : names) {
      EXPECT_EQ(found.count(identifier), 1u) << name << " is in no source";
    }
    return places;
  }

  static inline std::mutex mutex_;
  static inline std::set<std::string> struck_;
  const std::function<bool()> may_skip_;
};

}  // namespace eta::testing
