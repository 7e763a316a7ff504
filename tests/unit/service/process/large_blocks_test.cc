#include "service/process/large_blocks.h"

#include <malloc.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace eta {
namespace {

using Block = std::unique_ptr<char[]>;

Block Filled(size_t size) {
  Block block = std::make_unique<char[]>(size);
  std::memset(block.get(), 1, size);
  return block;
}

// Where the C library is left to itself, every thread keeps two megabytes here.
TEST(LargeBlocks, GoBackOnceTheyAreFreedWhateverThreadHadThem) {
  constexpr size_t kMegabyte = size_t{1} << 20;
  constexpr int kThreads = 4;
  ReturnLargeBlocks();
  const size_t before = mallinfo2().fordblks;
  std::vector<Block> small(kThreads);  // each on top of what its thread has freed
  std::vector<std::thread> threads;
  for (Block& top : small) {
    threads.emplace_back([&top] {
      Filled(kMegabyte).reset();
      Block first = Filled(kMegabyte - 4096);
      Block second = Filled(kMegabyte - 4096);
      top = Filled(kMegabyte / 10);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(mallinfo2().fordblks, before + kMegabyte);
}

}  // namespace
}  // namespace eta
