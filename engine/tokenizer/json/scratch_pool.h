// Memory that encoding needs, lent from text to text, so that words which one text had are known
// when the next one comes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/tokenizer/json/bpe_model.h"

namespace eta {

// Thread-safe. So many texts at once have a cache; those beyond do without one. So its memory is
// bounded, and no lock is held while a text is encoded.
class ScratchPool {
 public:
  static constexpr size_t kCaches = 8;

  // Gives it back at its end. The pool must outlive it.
  class Loan {
   public:
    Loan(ScratchPool& pool, std::unique_ptr<BpeScratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    ~Loan() { pool_.GiveBack(std::move(scratch_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    BpeScratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<BpeScratch> scratch_;
  };

  Loan Borrow() { return Loan(*this, Take()); }

 private:
  std::unique_ptr<BpeScratch> Take();
  void GiveBack(std::unique_ptr<BpeScratch> scratch);

  Mutex mutex_;
  size_t made_ GUARDED_BY(mutex_) = 0;  // with a cache
  std::vector<std::unique_ptr<BpeScratch>> free_ GUARDED_BY(mutex_);
};

}  // namespace eta
