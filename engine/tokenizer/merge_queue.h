// Neighbours that make a piece, best first: by the piece's rank, then from left to right. Not
// thread-safe.
//
// The neighbours of one rank stand in one list. One heap over all neighbours would miss the caches
// at every step, and a text of a single character would cost far more for each byte than any other.
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

  // Makes the list of the next rank the current one; false: there is none.
  bool NextRank();

  uint32_t rank_ = 0;          // of the current list; 0: there is none yet
  std::vector<int32_t> list_;  // of rank_, ascending
  size_t next_ = 0;            // in list_
  Early early_;                // pushed when their rank was current or past: rank * 2^32 + left
  std::unordered_map<uint32_t, std::vector<int32_t>> later_;  // by rank, above rank_
  Ranks ranks_;                                               // of later_
};

}  // namespace eta
