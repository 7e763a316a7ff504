// How the layers of a model share the pages of one pool (KvCache).
//
// Layers of one kind, full ones or those of a window, form groups of equal size. A page holds a
// block of tokens in all layers of one group, so pages of all groups are alike, and a sequence has
// a block table for each group. A model whose layers are of one kind is one group.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace eta {

struct LayerGroups {
  struct Place {
    int32_t group = 0;
    int32_t slot = 0;  // among the group's layers
  };

  int32_t slots = 0;  // layers of a group; the last groups of a kind may have fewer
  std::vector<int32_t>
      windows;                // by group: the window of its layers; full ones, with 0, come first
  std::vector<Place> places;  // [L]

  int32_t size() const { return static_cast<int32_t>(windows.size()); }
  int32_t num_full() const;

  // Pages that a sequence of `tokens` tokens holds at most, if a step computes at most `rows` of
  // its rows: all of its blocks for full layers, those that rows of one step see for a window.
  int64_t MostPages(int64_t tokens, int32_t rows, int32_t block_size) const;
  // The tokens of the longest sequence, at most `limit`, that `pages` hold.
  int64_t MostTokens(int64_t pages, int32_t rows, int32_t block_size, int64_t limit) const;
};

LayerGroups GroupLayers(const ModelConfig& config);

// The first block that a row at `position` sees through a window; of full layers, 0, that is 0.
inline int64_t FirstBlockSeen(int64_t position, int32_t window, int32_t block_size) {
  return window == 0 || position < window ? 0 : (position - window + 1) / block_size;
}

}  // namespace eta
