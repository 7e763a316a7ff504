#include "service/process/large_blocks.h"

#include <malloc.h>

namespace eta {
namespace {

constexpr int kLargeBlock = 256 << 10;

}  // namespace

void ReturnLargeBlocks() {
  mallopt(M_MMAP_THRESHOLD, kLargeBlock);
}

}  // namespace eta
