// How many CPUs answer no calls, and that a thread which answers them keeps off those.
#include "service/process/step_cpus.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"
#include "kernels/system/usable_cpus.h"

namespace eta {
namespace {

TEST(StepCpus, AreOneForEachGpuAndAQuarterAtMost) {
  EXPECT_EQ(ChooseStepCpus(0, 16), 0);
  EXPECT_EQ(ChooseStepCpus(1, 8), 1);
  EXPECT_EQ(ChooseStepCpus(8, 128), 8);
  EXPECT_EQ(ChooseStepCpus(4, 8), 2);
  EXPECT_EQ(ChooseStepCpus(1, 3), 0);
  EXPECT_EQ(ChooseStepCpus(1, 1), 0);
}

cpu_set_t Usable() {
  cpu_set_t cpus;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}

// The last CPUs of those that a thread may use, which need not lie side by side.
TEST(StepCpus, AreTheLastThatTheThreadMayUse) {
  for (const int gpus : {0, 1}) {
    for (const size_t stride : {1, 2, 3}) {
      std::thread([&] {
        cpu_set_t few = Usable();
        size_t seen = 0;
        for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
          if (CPU_ISSET(cpu, &few) && seen++ % stride != 0) CPU_CLR(cpu, &few);
        }
        ASSERT_EQ(sched_setaffinity(0, sizeof(few), &few), 0);
        const auto left = LeaveStepCpus(gpus);
        ASSERT_TRUE(left.ok()) << left.status();
        EXPECT_EQ(*left, ChooseStepCpus(gpus, ReadUsableCpus().threads()));
        const cpu_set_t rest = Usable();
        EXPECT_EQ(CPU_COUNT(&rest), CPU_COUNT(&few) - *left);
        int after = 0;
        for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
          if (CPU_ISSET(cpu, &rest)) {
            EXPECT_EQ(after, 0) << cpu;
          }
          after += CPU_ISSET(cpu, &few) && !CPU_ISSET(cpu, &rest) ? 1 : 0;
        }
        EXPECT_EQ(after, *left);
      }).join();
    }
  }
}

}  // namespace
}  // namespace eta
