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

TEST(KvEventEncoding, OfNothing) {
  EXPECT_EQ(Json::from_msgpack(EncodeKvEvents({}, KvEventEncoding::kMap)).at(1), Json::array());
}

}  // namespace
}  // namespace eta
