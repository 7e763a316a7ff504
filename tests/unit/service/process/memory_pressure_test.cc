#include "service/process/memory_pressure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

class MemoryPressureTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  MemoryPressureOptions Options() {
    return {.max_fraction = 0.95,
            .cgroup_root = folder_.path() + "/cgroup",
            .own_cgroup_file = folder_.path() + "/self"};
  }
  Pressure Level() {
    MemoryPressure pressure(Options());
    pressure.Refresh();
    return pressure.level();
  }

  TempFolder folder_;
};

TEST_F(MemoryPressureTest, IsLowWithoutAnyLimit) {
  EXPECT_EQ(Level(), Pressure::kNone) << "no files at all";
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "max\n");
  Write("cgroup/memory.current", "1000\n");
  EXPECT_EQ(Level(), Pressure::kNone);
}

TEST_F(MemoryPressureTest, Version2CountsWhatCannotBeDropped) {
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "1000\n");
  Write("cgroup/memory.current", "990\n");
  Write("cgroup/memory.stat", "anon 600\nfile 400\ninactive_file 100\nactive_file 300\n");
  MemoryPressure pressure(Options());
  EXPECT_DOUBLE_EQ(pressure.FractionUsed(), 0.89);
  pressure.Refresh();
  EXPECT_EQ(pressure.level(), Pressure::kNone);
  Write("cgroup/memory.stat", "anon 955\ninactive_file 30\n");
  pressure.Refresh();
  EXPECT_EQ(pressure.level(), Pressure::kShort);
}

TEST_F(MemoryPressureTest, ALimitAroundTheOwnGroupCountsToo) {
  Write("self", "0::/pods/one/main\n");
  Write("cgroup/pods/one/main/memory.max", "max\n");
  Write("cgroup/pods/one/main/memory.current", "500\n");
  Write("cgroup/pods/one/memory.max", "1000\n");
  Write("cgroup/pods/one/memory.current", "960\n");
  Write("cgroup/pods/memory.max", "100000\n");
  Write("cgroup/pods/memory.current", "970\n");
  EXPECT_DOUBLE_EQ(MemoryPressure(Options()).FractionUsed(), 0.96);
}

TEST_F(MemoryPressureTest, Version1) {
  Write("self", "12:cpu,cpuacct:/docker/abc\n9:memory:/docker/abc\n1:name=systemd:/docker/abc\n");
  Write("cgroup/memory/memory.limit_in_bytes", "1000\n");  // as seen inside of a container
  Write("cgroup/memory/memory.usage_in_bytes", "980\n");
  Write("cgroup/memory/memory.stat", "inactive_file 0\ntotal_inactive_file 10\n");
  EXPECT_DOUBLE_EQ(MemoryPressure(Options()).FractionUsed(), 0.97);
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Level(), Pressure::kNone);
}

TEST_F(MemoryPressureTest, ReportsChangesAndEndsStreamsWhereItIsCriticalOnly) {
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "1000\n");
  Write("cgroup/memory.current", "0\n");
  std::string changes;
  MemoryPressureOptions options = Options();
  options.on_change = [&](Pressure level, double used) {
    changes += std::string(Name(level)) + "@" + std::to_string(std::lround(used * 1000)) + " ";
  };
  MemoryPressure pressure(options);
  int relieved = 0;
  pressure.Begin([&] { ++relieved; });
  pressure.Stop();  // the test reads itself
  const auto read = [&](const std::string& used) {
    Write("cgroup/memory.current", used);
    pressure.Refresh();
  };
  read("900");
  read("910");
  read("960");
  EXPECT_EQ(relieved, 0);
  read("990");
  read("990");
  EXPECT_EQ(relieved, 2);
  read("965");
  EXPECT_EQ(relieved, 3) << "until it is well below";
  read("100");
  read("100");
  EXPECT_EQ(relieved, 3);
  EXPECT_EQ(changes, "short@960 critical@990 none@100 ");
}

TEST_F(MemoryPressureTest, DamagedFilesSetNoLimit) {
  Write("self", "nonsense\n0:\n::\n0::/\n");
  for (const std::string limit : {"", "-5", "0", "12x", "99999999999999999999999"}) {
    Write("cgroup/memory.max", limit);
    Write("cgroup/memory.current", "99");
    EXPECT_EQ(Level(), Pressure::kNone) << limit;
  }
}

}  // namespace
}  // namespace eta
