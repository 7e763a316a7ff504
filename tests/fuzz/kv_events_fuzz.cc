// The prefix caches of two devices under any order of things, and readers of their events that
// come, read and sleep whenever they like: whoever has read all there is knows what is cached, by
// each encoding. Input: one byte says what happens next, the bytes behind it to whom.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/kv_events/kv_event_feed.h"
#include "engine/batching/kv_events/kv_event_recorder.h"
#include "nlohmann/json.hpp"
#include "service/kv_events/kv_event_encoding.h"
#include "tests/testing/fuzz/input_reader.h"

namespace {

using eta::fuzz::Require;
using Json = nlohmann::json;

constexpr int kBlocks = 12;  // of a device
constexpr int kNames = 24;   // block n comes after block n / 2

eta::PrefixKey KeyOf(int name) {
  eta::PrefixKey key;
  key.digest.fill(static_cast<uint8_t>(name));
  return key;
}

struct CachingDevice {
  explicit CachingDevice(const std::shared_ptr<eta::KvEventLog>& log)
      : recorder(log, "model"), pool(kBlocks, &recorder) {}

  void Publish(int32_t block, int name) {
    const eta::PrefixKey parent = KeyOf(name / 2);
    const std::vector<int32_t> tokens = {name, name};
    pool.Publish(block, KeyOf(name), name < 2 ? nullptr : &parent, tokens);
  }
  bool Caches(int name) const { return pool.FindPrefix(std::vector{KeyOf(name)}).num_blocks == 1; }

  eta::KvEventRecorder recorder;
  eta::BlockPool pool;
  std::vector<int32_t> held;
};

// A reader that knows events only as they are published, in one of the encodings.
class EncodedReader {
 public:
  EncodedReader(eta::KvEventFeed& feed, uint64_t start, eta::KvEventEncoding encoding)
      : encoding_(encoding), begins_(start <= 1), subscription_(*feed.Subscribe(start, [] {})) {}

  // True: it has read all that there is.
  bool ReadOne() {
    const auto batch = subscription_->Next();
    Require(batch.ok());
    if (*batch == nullptr) return true;
    Require(next_ == 0 || (*batch)->snapshot || (*batch)->sequence == next_);
    next_ = (*batch)->sequence + 1;
    const Json message = Json::from_msgpack(eta::EncodeKvEvents(**batch, encoding_));
    Require(message.size() == 3);
    for (const Json& event : message.at(1)) Apply(event);
    return false;
  }
  // Who begins in the middle knows what changed since, and no more.
  bool knows_all() const { return begins_; }
  const std::set<int>& names() const { return names_; }

 private:
  const Json& Field(const Json& event, const char* name, size_t place) const {
    return encoding_ == eta::KvEventEncoding::kMap ? event.at(name) : event.at(place);
  }
  void Apply(const Json& event) {
    const Json& type = Field(event, "type", 0);
    if (type == "AllBlocksCleared") {
      names_.clear();
      hashes_.clear();
      begins_ = true;
      return;
    }
    const Json& hashes = Field(event, "block_hashes", 1);
    Require(!hashes.empty());
    if (type == "BlockRemoved") {
      for (const Json& hash : hashes) names_.erase(NameOf(hash.get<uint64_t>()));
      return;
    }
    Require(type == "BlockStored");
    const Json& tokens = Field(event, "token_ids", 3);
    Require(Field(event, "block_size", 4) == 2 && tokens.size() == 2 * hashes.size());
    for (size_t i = 0; i < hashes.size(); ++i) {
      const int name = tokens.at(2 * i).get<int>();
      hashes_[hashes.at(i).get<uint64_t>()] = name;
      names_.insert(name);
    }
  }
  int NameOf(uint64_t hash) const {
    const auto found = hashes_.find(hash);
    return found == hashes_.end() ? -1 : found->second;
  }

  const eta::KvEventEncoding encoding_;
  bool begins_;
  uint64_t next_ = 0;
  std::set<int> names_;
  std::map<uint64_t, int> hashes_;
  const std::unique_ptr<eta::KvEventSubscription> subscription_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eta::fuzz::InputReader input(data, size);
  eta::KvEventFeed feed;
  std::array<CachingDevice, 2> devices{CachingDevice(feed.log()), CachingDevice(feed.log())};
  std::vector<std::unique_ptr<EncodedReader>> readers;
  for (int steps = 0; !input.empty() && steps < 4'000; ++steps) {
    CachingDevice& device = devices[static_cast<size_t>(input.Int(0, 1))];
    const int what = input.Int(0, 9);
    if (what <= 1) {
      if (const auto block = device.pool.Allocate()) device.held.push_back(*block);
    } else if (what <= 3 && !device.held.empty()) {
      const auto i = input.Int(0, static_cast<int32_t>(device.held.size()) - 1);
      device.Publish(device.held[static_cast<size_t>(i)], input.Int(1, kNames));
    } else if (what <= 5 && !device.held.empty()) {
      const auto i = input.Int(0, static_cast<int32_t>(device.held.size()) - 1);
      device.pool.Release(device.held[static_cast<size_t>(i)]);
      device.held.erase(device.held.begin() + i);
    } else if (what == 6) {
      if (const auto block = device.pool.Acquire(KeyOf(input.Int(1, kNames)))) {
        device.held.push_back(*block);
      }
    } else if (what == 7) {
      device.recorder.Flush(/*wait=*/input.Bool());
    } else if (what == 8 && readers.size() < 4) {
      readers.push_back(std::make_unique<EncodedReader>(
          feed, static_cast<uint64_t>(input.Int(0, 40)),
          input.Bool() ? eta::KvEventEncoding::kMap : eta::KvEventEncoding::kArray));
    } else if (what == 9 && !readers.empty()) {
      (void)readers[static_cast<size_t>(input.Int(0, 3)) % readers.size()]->ReadOne();
    } else if (what == 8 && input.Byte() % 16 == 0) {
      device.pool.Forget();
    }
  }
  std::set<int> cached;
  for (CachingDevice& device : devices) {
    device.recorder.Flush(/*wait=*/true);
    for (int name = 1; name <= kNames; ++name) {
      if (device.Caches(name)) cached.insert(name);
    }
  }
  readers.push_back(std::make_unique<EncodedReader>(feed, 0, eta::KvEventEncoding::kMap));
  for (const auto& reader : readers) {
    while (!reader->ReadOne()) {
    }
    if (reader->knows_all()) Require(reader->names() == cached);
  }
  return 0;
}
