#include "service/memory_pressure.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/temp_folder.h"

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

  TempFolder folder_;
};

TEST_F(MemoryPressureTest, IsLowWithoutAnyLimit) {
  EXPECT_FALSE(MemoryPressure(Options()).High()) << "no files at all";
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "max\n");
  Write("cgroup/memory.current", "1000\n");
  EXPECT_FALSE(MemoryPressure(Options()).High());
}

TEST_F(MemoryPressureTest, Version2CountsWhatCannotBeDropped) {
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "1000\n");
  Write("cgroup/memory.current", "990\n");
  Write("cgroup/memory.stat", "anon 600\nfile 400\ninactive_file 100\nactive_file 300\n");
  MemoryPressure pressure(Options());
  EXPECT_DOUBLE_EQ(pressure.FractionUsed(), 0.89);
  EXPECT_FALSE(pressure.High());
  Write("cgroup/memory.stat", "anon 955\ninactive_file 30\n");
  EXPECT_TRUE(pressure.High(Clock::now() + MemoryPressure::kPeriod));
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
  EXPECT_FALSE(MemoryPressure(Options()).High());
}

TEST_F(MemoryPressureTest, LooksOncePerPeriodAndReportsChangesOnly) {
  Write("self", "0::/\n");
  Write("cgroup/memory.max", "100\n");
  Write("cgroup/memory.current", "99\n");
  std::string changes;
  MemoryPressureOptions options = Options();
  options.on_change = [&](bool high) { changes += high ? "+" : "-"; };
  MemoryPressure pressure(options);
  const Clock::time_point start = Clock::now();
  EXPECT_TRUE(pressure.High(start));
  Write("cgroup/memory.current", "10\n");
  EXPECT_TRUE(pressure.High(start + MemoryPressure::kPeriod / 2)) << "not read again yet";
  EXPECT_FALSE(pressure.High(start + MemoryPressure::kPeriod));
  EXPECT_FALSE(pressure.High(start + 2 * MemoryPressure::kPeriod));
  EXPECT_EQ(changes, "+-");
}

TEST_F(MemoryPressureTest, DamagedFilesSetNoLimit) {
  Write("self", "nonsense\n0:\n::\n0::/\n");
  for (const std::string limit : {"", "-5", "0", "12x", "99999999999999999999999"}) {
    Write("cgroup/memory.max", limit);
    Write("cgroup/memory.current", "99");
    EXPECT_FALSE(MemoryPressure(Options()).High()) << limit;
  }
}

}  // namespace
}  // namespace eta
