// Several engines, one per device, behind the interface of one. Each has its own copy of the model,
// its own cache and its own step thread; a request stays where it was sent.
//
// A request goes to the engine with the least work before the request's end. That work is what the
// requests sent there earlier may still ask for, and the part of its own prompt that has to be
// prefilled there. The keys of the prompt's blocks, those of the engines' caches, tell how much of
// a prompt an engine has seen; no cache is looked into. Engines with room in their queues come
// first, and among them those whose queue leaves time for the request's deadline: a request is
// refused, or displaces another, only where no device can do better. Each engine enforces the
// limits of its own queue; the router ranks.
//
// A lost device gets nothing more; the others go on, and take over the requests that waited there.
// These keep their handle and their sink, their arrival and so their rank. What no other device
// takes ends with UNAVAILABLE. A pass goes where the fewest tokens of passes
// wait. Each device divides its slots between tenants by itself, and a tenant's limit of cached
// tokens is per device. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/batching/prefix_key.h"
#include "engine/front/engine.h"
#include "engine/front/routed_requests.h"
#include "engine/front/routed_sinks.h"

namespace eta {

// Which engines have been sent which beginnings of prompts, as far as it remembers. Not
// thread-safe.
class PrefixDirectory {
 public:
  static constexpr size_t kMaxPieces = size_t{1} << 18;
  static constexpr size_t kMaxEngines = 64;

  // A piece for each full block of a prompt, by the key that the engines' caches have it under.
  static std::vector<uint64_t> Pieces(std::span<const PrefixKey> keys);

  // How many of the leading pieces have been sent to `engine`.
  size_t Seen(const std::vector<uint64_t>& pieces, size_t engine) const;
  void Remember(const std::vector<uint64_t>& pieces, size_t engine);

 private:
  using Engines = uint64_t;  // one bit each
  Engines Find(uint64_t piece) const;

  // Two generations: when the young one is full, the old one is forgotten.
  std::unordered_map<uint64_t, Engines> young_;
  std::unordered_map<uint64_t, Engines> old_;
};

class Router final : public Engine {
 public:
  // One to kMaxEngines engines, all of the same model. `limits` are those of the whole.
  Router(std::vector<std::unique_ptr<Engine>> engines, const Limits& limits);
  ~Router() override;

  // Blocks, bytes and sequences are sums over the engines.
  const EngineInfo& info() const override { return info_; }
  const Limits& limits() const override { return limits_; }
  FormatCompiler& formats() override { return engines_.front()->formats(); }
  // OK if any engine has room.
  absl::StatusOr<int64_t> Check(const Request& request) const override;
  // By the first engine: all of them serve the same model.
  absl::StatusOr<PreparedRequest> Prepare(Request request) const override;
  // Where one engine has no room or has just been lost, the next best is asked.
  absl::StatusOr<uint64_t> Submit(PreparedRequest request,
                                  std::shared_ptr<EventSink> sink) override;
  absl::StatusOr<uint64_t> SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) override;
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override;
  absl::StatusOr<Detokenized> Detokenize(std::span<const int32_t> ids,
                                         bool special_tokens) const override;
  void Cancel(uint64_t handle) override;
  void ForgetPrefixes() override;
  void Drain(Clock::time_point deadline) override;
  // Sums; device_lost when all are.
  EngineSnapshot Snapshot() const override;
  std::vector<EngineSnapshot> Devices() const override;
  std::vector<TenantQueue> Tenants() const override;

 private:
  // The router, for sinks that may outlive it.
  struct Link {
    Mutex mutex;
    Router* router GUARDED_BY(mutex) = nullptr;
  };
  struct Choice {
    size_t engine;
    int64_t cost;       // tokens of the request itself
    int64_t total;      // with the load before it
    bool late = false;  // no room in its queue, or no time before the deadline
  };
  static std::vector<Choice> LeastFirst(std::vector<Choice> choices);
  // The engines that work, best first.
  std::vector<Choice> Rank(const std::vector<uint64_t>& pieces,
                           const PreparedRequest& request) const EXCLUDES(mutex_);
  // Submits to the best of the engines that takes it, but for one that has just given it back.
  absl::Status Place(PreparedRequest request, const std::shared_ptr<RoutedSink>& sink,
                     std::optional<size_t> lost);

  const std::vector<std::unique_ptr<Engine>> engines_;
  const Limits limits_;
  EngineInfo info_;
  const std::shared_ptr<EngineLoads> loads_;
  const std::shared_ptr<EngineLoads> pass_loads_;  // tokens of passes
  mutable Mutex mutex_;
  PrefixDirectory directory_ GUARDED_BY(mutex_);
  const std::shared_ptr<RoutedRequests> routed_;
  const std::shared_ptr<Link> link_;
};

}  // namespace eta
