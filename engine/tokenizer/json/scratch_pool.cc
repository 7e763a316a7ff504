#include "engine/tokenizer/json/scratch_pool.h"

namespace eta {

std::unique_ptr<BpeScratch> ScratchPool::Take() {
  MutexLock lock(mutex_);
  if (!free_.empty()) {
    std::unique_ptr<BpeScratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  const bool with_cache = made_ < kCaches;
  if (with_cache) free_.reserve(kCaches);  // so that giving back allocates nothing
  auto scratch = std::make_unique<BpeScratch>(with_cache);
  if (with_cache) ++made_;
  return scratch;
}

void ScratchPool::GiveBack(std::unique_ptr<BpeScratch> scratch) {
  // A long word's symbols are not kept.
  constexpr size_t kKeptSymbols = 4096;
  if (!scratch->cache) return;
  if (scratch->merger.symbols().capacity() > kKeptSymbols) scratch->merger = SymbolMerger();
  MutexLock lock(mutex_);
  free_.push_back(std::move(scratch));
}

}  // namespace eta
