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
  Pressure Rung() {
    MemoryPressure pressure(Options());
    pressure.Look();
    return pressure.rung();
  }

  TempFolder folder_;
};

TEST_F(MemoryPressureTest, IsLowWithoutAnyLimit) {
  EXPECT_EQ(Rung(), Pressure::kNone) << "no files at all";
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "max\n");
  Write("cgroup/memory.current", "1000\n");
  EXPECT_EQ(Rung(), Pressure::kNone);
}

TEST_F(MemoryPressureTest, Version2CountsWhatCannotBeDropped) {
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "1000\n");
  Write("cgroup/memory.current", "990\n");
  Write("cgroup/memory.stat", "anon 600\nfile 400\ninactive_file 100\nactive_file 300\n");
  MemoryPressure pressure(Options());
  EXPECT_DOUBLE_EQ(pressure.FractionUsed(), 0.89);
  pressure.Look();
  EXPECT_EQ(pressure.rung(), Pressure::kShortQueue);
  Write("cgroup/memory.stat", "anon 955\ninactive_file 30\n");
  pressure.Look();
  EXPECT_EQ(pressure.rung(), Pressure::kNoGenerate);
  EXPECT_TRUE(pressure.At(Pressure::kNoCalibrate));
  EXPECT_FALSE(pressure.At(Pressure::kEndStreams));
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
  EXPECT_EQ(Rung(), Pressure::kNone);
}

TEST_F(MemoryPressureTest, ReportsChangesAndEndsStreamsOnTheHighestRungOnly) {
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "1000\n");
  Write("cgroup/memory.current", "0\n");
  std::string changes;
  MemoryPressureOptions options = Options();
  options.on_change = [&](Pressure rung, double used) {
    changes += std::string(Name(rung)) + "@" + std::to_string(std::lround(used * 1000)) + " ";
  };
  MemoryPressure pressure(options);
  int relieved = 0;
  pressure.Begin([&] { ++relieved; });
  pressure.Stop();  // the test looks itself
  const auto look = [&](const std::string& used) {
    Write("cgroup/memory.current", used);
    pressure.Look();
  };
  look("900");
  look("910");
  look("960");
  EXPECT_EQ(relieved, 0);
  look("990");
  look("990");
  EXPECT_EQ(relieved, 2);
  look("965");
  EXPECT_EQ(relieved, 3) << "until it is well below";
  look("100");
  look("100");
  EXPECT_EQ(relieved, 3);
  EXPECT_EQ(changes, "short_queue@900 no_generate@960 end_streams@990 none@100 ");
}

TEST_F(MemoryPressureTest, DamagedFilesSetNoLimit) {
  Write("self", "nonsense\n0:\n::\n0::/\n");
  for (const std::string limit : {"", "-5", "0", "12x", "99999999999999999999999"}) {
    Write("cgroup/memory.max", limit);
    Write("cgroup/memory.current", "99");
    EXPECT_EQ(Rung(), Pressure::kNone) << limit;
  }
}

}  // namespace
}  // namespace eta
