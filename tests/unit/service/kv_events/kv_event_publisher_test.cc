#include "service/kv_events/kv_event_publisher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/net/zmq_reader.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using Kind = KvEvent::Kind;
using testing::BigEndian;
using testing::FromBigEndian;
using testing::ZmqReader;

constexpr uint64_t kEnd = ~uint64_t{0};

class KvEventPublisherTest : public ::testing::TestWithParam<KvEventEncoding> {
 protected:
  void Start(const std::string& publish = "tcp://127.0.0.1:0") {
    auto started = KvEventPublisher::Start({.publish = publish,
                                            .replay = "tcp://localhost:0",
                                            .topic = "kv@here@model",
                                            .encoding = GetParam()},
                                           feed_, [this](const absl::Status&) { ++troubles_; });
    ASSERT_TRUE(started.ok()) << started.status();
    publisher_ = *std::move(started);
  }
  void Append(Kind kind, uint64_t hash) {
    KvBlockPtr block;
    const auto same = static_cast<int64_t>(hash);
    if (kind == Kind::kStored) {
      block = std::make_shared<KvBlock>(
          KvBlock{.hash = same, .parent = std::nullopt, .tokens = {static_cast<int32_t>(hash), 1}});
    }
    std::vector<KvEventLog::Change> changes;
    changes.push_back({.kind = kind, .hash = same, .block = std::move(block)});
    feed_.log()->Append(changes);
  }
  std::set<uint64_t> Cached() const {
    const KvEventLog::Snapshot snapshot = feed_.log()->TakeSnapshot();
    std::set<uint64_t> hashes;
    for (const KvBlockPtr& block : snapshot.blocks) {
      hashes.insert(static_cast<uint64_t>(block->hash));
    }
    return hashes;
  }
  // A field of an event, by its name or by its place behind the type.
  static Json Field(const Json& event, const char* name, size_t place) {
    return event.is_array() ? event.at(place) : event.at(name);
  }
  static void Apply(const std::string& events, std::set<uint64_t>& hashes) {
    const Json batch = Json::from_msgpack(events);
    for (const Json& event : batch.at(1)) {
      const Json type = Field(event, "type", 0);
      if (type == "AllBlocksCleared") {
        hashes.clear();
        continue;
      }
      const Json named = Field(event, "block_hashes", 1);
      for (const Json& hash : named) {
        if (type == "BlockStored") {
          hashes.insert(hash.get<uint64_t>());
        } else {
          hashes.erase(hash.get<uint64_t>());
        }
      }
    }
  }
  // All batches that a replay from `number` gives, applied; the first number.
  std::optional<uint64_t> Replay(uint64_t number, std::set<uint64_t>& hashes) {
    ZmqReader reader(ZMQ_DEALER, publisher_->replay_address());
    reader.Send({"", BigEndian(number)});
    std::optional<uint64_t> first;
    while (true) {
      const std::vector<std::string> frames = reader.Receive();
      EXPECT_EQ(frames.size(), 3u);
      EXPECT_EQ(frames[0], "");
      const uint64_t batch = FromBigEndian(frames[1]);
      if (batch == kEnd) {
        EXPECT_EQ(frames[2], "");
        return first;
      }
      if (!first) first = batch;
      Apply(frames[2], hashes);
    }
  }

  KvEventFeed feed_;
  std::atomic<int> troubles_ = 0;
  std::unique_ptr<KvEventPublisher> publisher_;
};

// As a router does: it subscribes, and asks again for what it had missed by then.
TEST_P(KvEventPublisherTest, WhoSubscribesAndReplaysKnowsTheCache) {
  Start();
  for (uint64_t hash = 1; hash <= 5; ++hash) Append(Kind::kStored, hash);
  Append(Kind::kRemoved, 2);
  ZmqReader subscriber(ZMQ_SUB, publisher_->address());
  // Its subscription takes a while to be known.
  for (uint64_t hash = 100; !subscriber.Await(5); ++hash) Append(Kind::kStored, hash);
  Append(Kind::kRemoved, 1);
  const uint64_t last = feed_.log()->last_sequence() - 1;  // they count from 0

  std::set<uint64_t> published;
  std::optional<uint64_t> first;
  for (uint64_t expected = 0; !first || expected <= last; ++expected) {
    const std::vector<std::string> frames = subscriber.Receive();
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0], "kv@here@model");
    if (!first) first = expected = FromBigEndian(frames[1]);
    EXPECT_EQ(FromBigEndian(frames[1]), expected);
    Apply(frames[2], published);
  }

  std::set<uint64_t> replayed;
  EXPECT_EQ(Replay(0, replayed), 0u);
  EXPECT_EQ(replayed, Cached());
  std::set<uint64_t> rest;
  EXPECT_EQ(Replay(last, rest), last);
  EXPECT_EQ(Replay(last + 1, rest), std::nullopt) << "it is the next to come";
  EXPECT_EQ(troubles_, 0);
}

// bad input: KV events | a replay from a number that is too old, or has not been yet | all blocks
//   cleared, and what is cached now
TEST_P(KvEventPublisherTest, AReplayOfWhatIsNotKeptIsTheCacheAnew) {
  Start();
  for (uint64_t hash = 1; hash <= 3; ++hash) Append(Kind::kStored, hash);
  for (size_t i = 0; i < KvEventLog::kMaxBatches; ++i) {
    Append(i % 2 == 0 ? Kind::kRemoved : Kind::kStored, 1);
  }
  const uint64_t last = feed_.log()->last_sequence() - 1;
  for (const uint64_t from : {uint64_t{0}, last + 7, kEnd}) {
    std::set<uint64_t> hashes = {99};
    EXPECT_EQ(Replay(from, hashes), last);
    EXPECT_EQ(hashes, Cached());
  }
}

// bad input: KV events | a request for replay of other frames, another length or a megabyte | no
//   answer, the last one loses its connection; the next good one is answered
TEST_P(KvEventPublisherTest, OddRequestsAreNotAnsweredAndHurtNobody) {
  Start();
  Append(Kind::kStored, 1);
  ZmqReader odd(ZMQ_DEALER, publisher_->replay_address());
  odd.Send({""});
  odd.Send({BigEndian(0)});
  odd.Send({"", "7"});
  odd.Send({"x", BigEndian(0)});
  odd.Send({"", BigEndian(0), ""});
  odd.Send({"", std::string(200, 'x')});
  ZmqReader huge(ZMQ_DEALER, publisher_->replay_address());
  huge.Send({"", std::string(size_t{1} << 20, 'x')});
  odd.Send({"", BigEndian(1)});
  EXPECT_EQ(FromBigEndian(odd.Receive().at(1)), kEnd)
      << "the one good request, and its only answer";
  std::set<uint64_t> hashes;
  EXPECT_EQ(Replay(0, hashes), 0u);
  EXPECT_EQ(hashes, Cached());
}

// More than waits for it, and nobody waits.
TEST_P(KvEventPublisherTest, ASubscriberThatReadsNothingHoldsNobodyUp) {
  Start();
  ZmqReader asleep(ZMQ_SUB, publisher_->address());
  while (!asleep.Await(5)) Append(Kind::kStored, 1'000'000 + feed_.log()->last_sequence());
  for (int i = 0; i < 2 * KvEventPublisher::kMaxUnsent; ++i) {
    Append(i % 2 == 0 ? Kind::kStored : Kind::kRemoved, 1);
  }
  std::set<uint64_t> hashes;
  EXPECT_EQ(Replay(kEnd, hashes), feed_.log()->last_sequence() - 1);
  EXPECT_EQ(hashes, Cached());
}

TEST_P(KvEventPublisherTest, AnAddressThatIsTakenIsNamedWithItsFlag) {
  Start();
  const auto second = KvEventPublisher::Start({.publish = publisher_->address()}, feed_,
                                              [](const absl::Status&) {});
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_NE(
      second.status().message().find("--kv_events: cannot listen on " + publisher_->address()),
      absl::string_view::npos)
      << second.status();
}

INSTANTIATE_TEST_SUITE_P(Encodings, KvEventPublisherTest,
                         ::testing::Values(KvEventEncoding::kMap, KvEventEncoding::kArray));

}  // namespace
}  // namespace eta
