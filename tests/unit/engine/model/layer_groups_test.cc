// How layers share the pages of the cache, and how many pages a sequence takes.
#include "engine/model/layer_groups.h"

#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using testing::ElementsAre;

constexpr int32_t kBlock = 64;

// `windows` by layer.
ModelConfig ModelOf(const std::vector<int32_t>& windows) {
  ModelConfig config;
  config.num_layers = static_cast<int32_t>(windows.size());
  for (const int32_t window : windows) config.layers.push_back({.window = window});
  return config;
}

// Gemma 3's: five layers with a window to a full one.
ModelConfig GemmaOf(int32_t num_layers, int32_t window) {
  std::vector<int32_t> windows;
  for (int32_t i = 0; i < num_layers; ++i) windows.push_back((i + 1) % 6 == 0 ? 0 : window);
  return ModelOf(windows);
}

void ExpectEveryLayerHasAPlace(const ModelConfig& config) {
  const LayerGroups groups = GroupLayers(config);
  std::set<std::pair<int32_t, int32_t>> taken;
  ASSERT_EQ(groups.places.size(), static_cast<size_t>(config.num_layers));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const auto [group, slot] = groups.places[static_cast<size_t>(i)];
    EXPECT_TRUE(taken.insert({group, slot}).second) << i;
    ASSERT_LT(group, groups.size());
    EXPECT_LT(slot, groups.slots);
    EXPECT_EQ(groups.windows[static_cast<size_t>(group)], config.layer(i).window) << i;
  }
  for (int32_t g = 1; g < groups.size(); ++g) {
    EXPECT_LE(groups.windows[static_cast<size_t>(g - 1)], groups.windows[static_cast<size_t>(g)])
        << "full layers come first";
  }
}

TEST(LayerGroups, LayersOfOneKindAreOneGroup) {
  for (const int32_t window : {0, 512}) {
    const ModelConfig config = ModelOf(std::vector<int32_t>(32, window));
    const LayerGroups groups = GroupLayers(config);
    EXPECT_EQ(groups.slots, 32);
    EXPECT_THAT(groups.windows, ElementsAre(window));
    EXPECT_EQ(groups.num_full(), window == 0 ? 1 : 0);
    ExpectEveryLayerHasAPlace(config);
  }
  ModelConfig plain;
  plain.num_layers = 30;
  EXPECT_EQ(GroupLayers(plain).slots, 30);
  EXPECT_EQ(GroupLayers(ModelConfig()).size(), 1) << "a model without layers";
}

TEST(LayerGroups, GroupsAreLargeAndWasteLittle) {
  const auto shape = [](const ModelConfig& config) {
    ExpectEveryLayerHasAPlace(config);
    const LayerGroups groups = GroupLayers(config);
    return std::vector{groups.slots, groups.num_full(), groups.size() - groups.num_full()};
  };
  const auto layers = [](int32_t full, int32_t with) {
    std::vector<int32_t> windows(static_cast<size_t>(full), 0);
    windows.resize(static_cast<size_t>(full + with), 512);
    return ModelOf(windows);
  };
  EXPECT_THAT(shape(GemmaOf(18, 512)), ElementsAre(3, 1, 5));    // of 270M
  EXPECT_THAT(shape(GemmaOf(26, 512)), ElementsAre(4, 1, 6));    // 1B
  EXPECT_THAT(shape(GemmaOf(34, 1024)), ElementsAre(5, 1, 6));   // 4B
  EXPECT_THAT(shape(GemmaOf(48, 1024)), ElementsAre(8, 1, 5));   // 12B
  EXPECT_THAT(shape(GemmaOf(62, 1024)), ElementsAre(10, 1, 6));  // 27B
  EXPECT_THAT(shape(layers(12, 12)), ElementsAre(12, 1, 1));     // gpt-oss
  EXPECT_THAT(shape(layers(16, 15)), ElementsAre(16, 1, 1));
  EXPECT_THAT(shape(layers(1, 31)), ElementsAre(1, 1, 31));
  EXPECT_THAT(shape(layers(28, 4)), ElementsAre(4, 7, 1));
  EXPECT_THAT(shape(ModelOf({0, 0, 64, 64, 128, 128})), ElementsAre(2, 1, 2));
}

// A page is of `slots` layers, whatever the group: what a sequence takes, in layers times blocks.
int64_t LayerBlocks(const ModelConfig& config, int64_t tokens, int32_t rows) {
  const LayerGroups groups = GroupLayers(config);
  return groups.MostPages(tokens, rows, kBlock) * groups.slots;
}

TEST(LayerGroups, GemmasShapeTakesUnderAQuarterOfTheMemoryAt32K) {
  constexpr int32_t kContext = 32768;
  for (const auto& [num_layers, window] :
       {std::pair(18, 512), {26, 512}, {34, 1024}, {48, 1024}, {62, 1024}}) {
    const ModelConfig config = GemmaOf(num_layers, window);
    const int64_t full = LayerBlocks(ForContext(config, window), kContext, 256);
    EXPECT_EQ(full, int64_t{num_layers} * kContext / kBlock);
    EXPECT_LT(LayerBlocks(config, kContext, 256), full / 4) << num_layers;
    // Of an answer's rows, one to a step, it is less.
    EXPECT_LT(LayerBlocks(config, kContext, 1), full * 22 / 100) << num_layers;
  }
}

TEST(LayerGroups, MostPagesAreThoseThatRowsOfAStepSee) {
  const LayerGroups groups = GroupLayers(ModelOf({0, 100}));
  EXPECT_EQ(groups.MostPages(1, 10, 16), 2);
  EXPECT_EQ(groups.MostPages(16, 10, 16), 2);
  EXPECT_EQ(groups.MostPages(17, 10, 16), 4);
  // 99 keys before a step of 10 rows: 109 tokens, which lie in 8 blocks of 16 at most.
  EXPECT_EQ(groups.MostPages(1600, 10, 16), 100 + 8);
  for (int64_t position = 100; position < 300; ++position) {
    const int64_t first = FirstBlockSeen(position, 100, 16);
    EXPECT_LE((position + 10 + 15) / 16 - first, 8) << position;
    EXPECT_LE(first * 16, position - 99) << "its first key is held";
    EXPECT_GT((first + 1) * 16, position - 99) << "no block more";
  }
  EXPECT_EQ(FirstBlockSeen(99, 100, 16), 0);
  EXPECT_EQ(FirstBlockSeen(1000, 0, 16), 0) << "a full layer";
  EXPECT_EQ(FirstBlockSeen(1000, 1, 16), 62) << "its own key";
}

TEST(LayerGroups, MostTokensAreThoseWhosePagesFit) {
  for (const std::vector<int32_t>& windows :
       {std::vector<int32_t>{0, 0}, {0, 100}, {0, 0, 40, 40, 40, 40}, {64}}) {
    const LayerGroups groups = GroupLayers(ModelOf(windows));
    for (const int64_t pages : {1, 7, 20, 100, 999}) {
      const int64_t tokens = groups.MostTokens(pages, 32, 16, 100'000);
      EXPECT_LE(groups.MostPages(tokens, 32, 16), pages);
      if (tokens < 100'000) {
        EXPECT_GT(groups.MostPages(tokens + 1, 32, 16), pages);
      }
    }
  }
  EXPECT_EQ(GroupLayers(ModelOf({0, 0})).MostTokens(7, 32, 16, 100'000), 112);
  EXPECT_EQ(GroupLayers(ModelOf({64})).MostTokens(7, 32, 16, 100'000), 100'000)
      << "a window holds a text of any length";
}

}  // namespace
}  // namespace eta
