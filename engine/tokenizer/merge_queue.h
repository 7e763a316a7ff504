// Neighbours that make a piece, best first: by the piece's rank, then from left to right.
//
// Those of one rank stand in one list, so that a text of a single character costs little more for
// each byte than any other: a heap over all of them misses the caches at every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

namespace eta {

class MergeQueue {
 public:
  struct Merge {
    uint32_t rank;
    int32_t left;  // of the two
  };

  // `rank` from 1 on; the lowest is the best. `left` not negative.
  void Push(uint32_t rank, int32_t left);
  // Removes the best; absent: there is none.
  std::optional<Merge> Pop();

 private:
  using Early = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;
  using Ranks = std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>>;

  // Makes the list of the next rank the one that is taken from; false: none waits.
  bool NextRank();

  uint32_t rank_ = 0;          // whose turn it is; 0: nobody's yet
  std::vector<int32_t> list_;  // of rank_, ascending
  size_t next_ = 0;            // in list_
  Early early_;                // came when it was rank_'s turn or past theirs: rank * 2^32 + left
  std::unordered_map<uint32_t, std::vector<int32_t>> later_;  // by rank, above rank_
  Ranks ranks_;                                               // of later_
};

}  // namespace eta
