// Threads keep to the tightest of the CPU mask and of the quotas of all control groups around.
#include "kernels/system/usable_cpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

class UsableCpusTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::optional<double> Quota() {
    return ReadCpuQuota({.root = folder_.path() + "/cgroup", .own = folder_.path() + "/self"});
  }

 private:
  const TempFolder folder_;
};

TEST_F(UsableCpusTest, WithoutALimitThereIsNoQuota) {
  EXPECT_EQ(Quota(), std::nullopt) << "no such files";
  Write("self", "0::/pod\n");
  EXPECT_EQ(Quota(), std::nullopt) << "no such group";
  Write("cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota(), std::nullopt);
}

TEST_F(UsableCpusTest, ReadsTheQuotaOfVersion2) {
  Write("self", "0::/pod\n");
  Write("cgroup/pod/cpu.max", "250000 100000\n");
  EXPECT_EQ(Quota(), 2.5);
}

TEST_F(UsableCpusTest, TheTightestOfAllGroupsAroundHolds) {
  Write("self", "0::/slice/pod/container\n");
  Write("cgroup/slice/pod/container/cpu.max", "max 100000\n");
  Write("cgroup/slice/pod/cpu.max", "150000 50000\n");
  Write("cgroup/slice/cpu.max", "800000 100000\n");
  EXPECT_EQ(Quota(), 3.0);
  Write("cgroup/slice/pod/container/cpu.max", "50000 100000\n");
  EXPECT_EQ(Quota(), 0.5);
  Write("cgroup/cpu.max", "10000 100000\n");  // of a container that sees itself as the root
  EXPECT_EQ(Quota(), 0.1);
}

TEST_F(UsableCpusTest, ReadsTheQuotaOfVersion1) {
  Write("self", "12:memory:/pod\n4:cpu,cpuacct:/pod/container\n0::/\n");
  Write("cgroup/cpu/pod/container/cpu.cfs_quota_us", "-1\n");
  Write("cgroup/cpu/pod/container/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), std::nullopt);
  Write("cgroup/cpu/pod/cpu.cfs_quota_us", "400000\n");
  Write("cgroup/cpu/pod/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 4.0);
}

TEST_F(UsableCpusTest, WhatCannotBeReadSetsNoLimit) {
  Write("self", "no colons\n0:/half\n0::/pod\n");
  for (const char* text : {"", "\n", "100000\n", "0 100000\n", "-5 100000\n", "100000 0\n",
                           "1e5 100000\n", "99999999999999999999 100000\n"}) {
    Write("cgroup/pod/cpu.max", text);
    EXPECT_EQ(Quota(), std::nullopt) << text;
  }
}

TEST_F(UsableCpusTest, ThreadsAreTheFewerOfBothRoundedDown) {
  EXPECT_EQ((UsableCpus{.affinity = 8}.threads()), 8);
  EXPECT_EQ((UsableCpus{.affinity = 8, .quota = 2.5}.threads()), 2);
  EXPECT_EQ((UsableCpus{.affinity = 8, .quota = 0.1}.threads()), 1);
  EXPECT_EQ((UsableCpus{.affinity = 2, .quota = 64.0}.threads()), 2);
  EXPECT_EQ((UsableCpus{.affinity = 2, .quota = 1e15}.threads()), 2);
}

TEST_F(UsableCpusTest, ThisProcessMayUseOneAtLeast) {
  EXPECT_GE(ReadUsableCpus().threads(), 1);
  EXPECT_LE(ReadUsableCpus().threads(), ReadUsableCpus().affinity);
}

}  // namespace
}  // namespace eta
