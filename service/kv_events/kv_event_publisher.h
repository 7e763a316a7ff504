// Publishes the prefix cache's events over ZeroMQ, as vLLM does and as routers subscribe to them.
//
// A PUB socket sends three frames for each batch: the topic; its number, 8 bytes, the most
// significant first, from 0; the events (kv_event_encoding.h). What a slow subscriber has no room
// for is dropped: it sees a gap in the numbers.
//
// A ROUTER socket, if there is one, answers who missed batches. A request is an empty frame and the
// first number that is wanted; the answers are an empty frame, a number, the events; the last one
// has the number -1 and no events. Who asks for what is not kept any more gets AllBlocksCleared and
// all blocks that are cached now, under the number of the batch that they stand for.
//
// One thread does all of it. The engine never waits for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/descriptor.h"
#include "engine/batching/kv_events/kv_event_feed.h"
#include "service/kv_events/kv_event_options.h"

namespace eta {

class KvEventPublisher {
 public:
  // Batches that wait for one reader, more than a replay has; what is beyond them is dropped.
  static constexpr int kMaxUnsent = 20'000;

  // Begins with the first event of `feed`, which must outlive it. `on_trouble` is called on the
  // publisher's thread when events were lost, or when nothing is published any more. UNAVAILABLE,
  // naming the flag, if an address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> Start(
      const KvEventOptions& options, KvEventFeed& feed,
      std::function<void(const absl::Status&)> on_trouble);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // With the ports that were chosen.
  const std::string& address() const { return address_; }
  const std::string& replay_address() const { return replay_address_; }

 private:
  struct EndContext {
    void operator()(void* context) const;
  };
  struct CloseSocket {
    void operator()(void* socket) const;
  };
  using Socket = std::unique_ptr<void, CloseSocket>;

  KvEventPublisher(const KvEventOptions& options, KvEventFeed& feed,
                   std::function<void(const absl::Status&)> on_trouble)
      : options_(options), feed_(feed), on_trouble_(std::move(on_trouble)) {}

  absl::Status Open();
  // What can be bound to `address`, and where it is.
  absl::StatusOr<Socket> Bind(int type, const std::string& flag, const std::string& address,
                              std::string& bound) const;
  absl::Status Subscribe(uint64_t start);

  void Run();
  // True: there is more.
  bool PublishSome();
  void Send(void* socket, const std::vector<std::string_view>& frames) const;
  void AnswerReplay();
  void Replay(std::string_view reader, uint64_t number);

  const KvEventOptions options_;
  KvEventFeed& feed_;
  const std::function<void(const absl::Status&)> on_trouble_;
  std::string address_;
  std::string replay_address_;
  std::shared_ptr<const Descriptor> wake_;
  std::unique_ptr<void, EndContext> context_;
  Socket publish_;                                     // the thread's, once it runs
  Socket replay_;                                      // likewise; null: nobody is answered
  std::unique_ptr<KvEventSubscription> subscription_;  // likewise; null: nothing comes any more
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace eta
