#include "service/kv_events/kv_event_encoding.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;
using Kind = KvEvent::Kind;

KvEvent Event(Kind kind, int64_t hash, std::optional<int64_t> parent, std::vector<int32_t> tokens) {
  return {.kind = kind,
          .block = std::make_shared<KvBlock>(
              KvBlock{.hash = hash, .parent = parent, .tokens = std::move(tokens)})};
}

// Two blocks of one prompt, one of another, two that go, and all.
KvEventBatch Batch() {
  KvEventBatch batch;
  batch.sequence = 3;
  batch.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'500));
  batch.events.push_back(Event(Kind::kStored, 11, 10, {1, 2}));
  batch.events.push_back(Event(Kind::kStored, 12, 11, {3, 4}));
  batch.events.push_back(Event(Kind::kStored, -1, std::nullopt, {5, 70'000}));
  batch.events.push_back(Event(Kind::kRemoved, 7, std::nullopt, {8, 9}));
  batch.events.push_back(Event(Kind::kRemoved, 12, 11, {3, 4}));
  batch.events.push_back({.kind = Kind::kCleared, .block = nullptr});
  return batch;
}

Json Decoded(KvEventEncoding encoding) {
  return Json::from_msgpack(EncodeKvEvents(Batch(), encoding));
}

TEST(KvEventEncoding, OfMaps) {
  EXPECT_EQ(Decoded(KvEventEncoding::kMap), Json::parse(R"([1.5, [
    {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": 10,
     "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": null, "medium": "GPU",
     "lora_name": null},
    {"type": "BlockStored", "block_hashes": [18446744073709551615], "parent_block_hash": null,
     "token_ids": [5, 70000], "block_size": 2, "lora_id": null, "medium": "GPU",
     "lora_name": null},
    {"type": "BlockRemoved", "block_hashes": [7, 12], "medium": "GPU"},
    {"type": "AllBlocksCleared"}], null])"));
}

TEST(KvEventEncoding, OfArrays) {
  EXPECT_EQ(Decoded(KvEventEncoding::kArray), Json::parse(R"([1.5, [
    ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, null, "GPU", null],
    ["BlockStored", [18446744073709551615], null, [5, 70000], 2, null, "GPU", null],
    ["BlockRemoved", [7, 12], "GPU"],
    ["AllBlocksCleared"]], null])"));
}

// Blocks of one prompt in two groups of layers: an event for each.
KvEventBatch OfGroups() {
  KvEventBatch batch;
  batch.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'500));
  const auto add = [&](Kind kind, int64_t hash, std::optional<int64_t> parent, KvGroup group) {
    batch.events.push_back(
        {.kind = kind,
         .block = std::make_shared<KvBlock>(
             KvBlock{.hash = hash, .parent = parent, .tokens = {1, 2}, .group = group})});
  };
  add(Kind::kStored, 11, std::nullopt, {.index = 0});
  add(Kind::kStored, 12, 11, {.index = 0});
  add(Kind::kStored, 11, std::nullopt, {.index = 1, .window = 512});
  add(Kind::kStored, 12, 11, {.index = 1, .window = 512});
  add(Kind::kRemoved, 11, std::nullopt, {.index = 1, .window = 512});
  add(Kind::kRemoved, 12, 11, {.index = 0});
  return batch;
}

TEST(KvEventEncoding, OfGroupsOfLayers) {
  EXPECT_EQ(Json::from_msgpack(EncodeKvEvents(OfGroups(), KvEventEncoding::kMap)).at(1),
            Json::parse(R"([
    {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": null,
     "token_ids": [1, 2, 1, 2], "block_size": 2, "lora_id": null, "medium": "GPU",
     "lora_name": null, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
     "kv_cache_spec_sliding_window": null},
    {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": null,
     "token_ids": [1, 2, 1, 2], "block_size": 2, "lora_id": null, "medium": "GPU",
     "lora_name": null, "group_idx": 1, "kv_cache_spec_kind": "sliding_window",
     "kv_cache_spec_sliding_window": 512},
    {"type": "BlockRemoved", "block_hashes": [11], "medium": "GPU", "group_idx": 1},
    {"type": "BlockRemoved", "block_hashes": [12], "medium": "GPU", "group_idx": 0}])"));
  EXPECT_EQ(Json::from_msgpack(EncodeKvEvents(OfGroups(), KvEventEncoding::kArray)).at(1),
            Json::parse(R"([
    ["BlockStored", [11, 12], null, [1, 2, 1, 2], 2, null, "GPU", null, null, 0,
     "full_attention", null],
    ["BlockStored", [11, 12], null, [1, 2, 1, 2], 2, null, "GPU", null, null, 1,
     "sliding_window", 512],
    ["BlockRemoved", [11], "GPU", 1],
    ["BlockRemoved", [12], "GPU", 0]])"));
}

TEST(KvEventEncoding, OfNothing) {
  EXPECT_EQ(Json::from_msgpack(EncodeKvEvents({}, KvEventEncoding::kMap)).at(1), Json::array());
}

}  // namespace
}  // namespace eta
