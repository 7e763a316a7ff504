// Fills the masks of a step on several threads, while the step thread has the forward pass noted or
// run. Of the step thread; the threads come with the first mask.
//
// A thread that wakes after the last mask has been taken finds nothing to do. What it looks at is
// its own, so nobody waits for it.
#pragma once

#include <memory>
#include <vector>

#include "engine/base/threads/worker_pool.h"
#include "engine/batching/formats/bound_answer.h"

namespace eta {

class MaskCrew {
 public:
  MaskCrew() = default;
  MaskCrew(const MaskCrew&) = delete;
  MaskCrew& operator=(const MaskCrew&) = delete;

  // Begins to fill the masks, and does not wait. REQUIRES: none is being filled.
  void Begin(std::vector<std::shared_ptr<BoundAnswer>> answers);
  // Fills what nobody has taken, and waits for the rest. Nothing, if nothing has begun.
  void Join();

 private:
  struct Round;
  // Fills masks until each has been taken.
  static void Work(Round& round);

  int threads_ = 0;  // of the pool; 0: it was not made yet
  std::unique_ptr<WorkerPool> pool_;
  std::shared_ptr<Round> round_;  // null: nothing is being filled
};

}  // namespace eta
