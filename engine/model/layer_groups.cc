#include "engine/model/layer_groups.h"

#include <algorithm>
#include <map>

namespace eta {
namespace {

int32_t CeilOf(int32_t count, int32_t size) {
  return (count + size - 1) / size;
}

// Whether groups of `size` leave at most one in `share` of a kind's slots empty.
bool FillsSlots(int32_t layers, int32_t size, int32_t share) {
  const int32_t slots = CeilOf(layers, size) * size;
  return (slots - layers) * share <= slots;
}

// The largest groups that waste little: an empty slot costs full layers a page for each block of
// the context, and a window its few.
int32_t GroupSize(const std::map<int32_t, int32_t>& layers_by_window) {
  constexpr int32_t kOfFull = 8;
  constexpr int32_t kOfWindow = 4;
  int32_t size = 1;
  for (const auto& [window, layers] : layers_by_window) size = std::max(size, layers);
  const auto fills = [&size](const auto& kind) {
    return FillsSlots(kind.second, size, kind.first == 0 ? kOfFull : kOfWindow);
  };
  while (!std::ranges::all_of(layers_by_window, fills)) --size;
  return size;
}

}  // namespace

LayerGroups GroupLayers(const ModelConfig& config) {
  std::map<int32_t, int32_t> layers_by_window;  // 0, full layers, comes first
  for (int32_t i = 0; i < config.num_layers; ++i) ++layers_by_window[config.layer(i).window];
  LayerGroups groups;
  groups.slots = GroupSize(layers_by_window);
  std::map<int32_t, int32_t> first_group;
  for (const auto& [window, layers] : layers_by_window) {
    first_group[window] = groups.size();
    groups.windows.resize(groups.windows.size() + CeilOf(layers, groups.slots), window);
  }
  if (groups.windows.empty()) groups.windows.push_back(0);  // a model without layers
  std::map<int32_t, int32_t> placed;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const int32_t window = config.layer(i).window;
    const int32_t place = placed[window]++;
    groups.places.push_back(
        {.group = first_group[window] + place / groups.slots, .slot = place % groups.slots});
  }
  return groups;
}

int32_t LayerGroups::num_full() const {
  return static_cast<int32_t>(std::ranges::count(windows, 0));
}

int64_t LayerGroups::MostPages(int64_t tokens, int32_t rows, int32_t block_size) const {
  const auto blocks = [block_size](int64_t of) { return (of + block_size - 1) / block_size; };
  int64_t pages = 0;
  for (const int32_t window : windows) {
    // The keys that the first row sees and the rows; their blocks begin and end anywhere.
    const int64_t seen = blocks(int64_t{window} - 1 + rows) + 1;
    pages += window == 0 ? blocks(tokens) : std::min(blocks(tokens), seen);
  }
  return pages;
}

int64_t LayerGroups::MostTokens(int64_t pages, int32_t rows, int32_t block_size,
                                int64_t limit) const {
  int64_t fit = 0;  // blocks of tokens
  int64_t over = (limit + block_size - 1) / block_size + 1;
  while (over - fit > 1) {
    const int64_t middle = fit + (over - fit) / 2;
    (MostPages(middle * block_size, rows, block_size) <= pages ? fit : over) = middle;
  }
  return std::min(limit, fit * block_size);
}

}  // namespace eta
