// Several engines, one per device, behind the interface of one. Each has its own copy of the model,
// its own cache and its own step thread; a request stays where it was sent.
//
// A request goes where the least stands before its end: what the requests sent there earlier may
// still ask for, and what of its own prompt has to be prefilled there. How much of a prompt an
// engine has seen is told from hashes of the prompt's pieces, without looking into any cache. One
// whose queue is full, or too long for the request's deadline, comes after those that have room: a
// request is refused, or takes another's place, where no device can do better. A device that is
// lost gets nothing more; the others go on. A pass goes where the fewest tokens of passes wait.
// Tenants are served in turn on each device by itself, and their limit of cached tokens is per
// device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace eta {

// Which engines have been sent which beginnings of prompts, as far as it remembers. Not
// thread-safe.
class PrefixDirectory {
 public:
  static constexpr size_t kPieceBytes = 512;
  static constexpr size_t kMaxPieces = size_t{1} << 17;
  static constexpr size_t kMaxEngines = 64;

  // Hashes of the whole pieces of `prompt`, each over all that stands before it and the tenant too.
  static std::vector<uint64_t> Pieces(const std::string& tenant, std::string_view prompt);

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

  // Blocks and bytes are sums over the engines.
  const EngineInfo& info() const override { return info_; }
  const Limits& limits() const override { return limits_; }
  // Where one engine has no room or has just been lost, the next best is asked.
  absl::StatusOr<uint64_t> Submit(Request request, std::shared_ptr<EventSink> sink) override;
  absl::StatusOr<uint64_t> SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) override;
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override;
  void Cancel(uint64_t handle) override;
  void Drain(Clock::time_point deadline) override;
  // Sums; device_lost when all are.
  EngineSnapshot Snapshot() const override;
  std::vector<EngineSnapshot> Devices() const override;
  std::vector<TenantQueue> Tenants() const override;

 private:
  class Account;
  class AccountedSink;
  class AccountedPassSink;
  // Per engine: tokens that its requests may still ask for, roughly.
  using Loads = std::vector<std::atomic<int64_t>>;
  struct Choice {
    size_t engine;
    int64_t cost;       // tokens of the request itself
    int64_t total;      // with the load before it
    bool late = false;  // it would have to refuse somebody
  };
  static std::vector<Choice> LeastFirst(std::vector<Choice> choices);
  // The engines that work, best first.
  std::vector<Choice> Rank(const std::vector<uint64_t>& pieces, const Request& request) const;

  const std::vector<std::unique_ptr<Engine>> engines_;
  const Limits limits_;
  EngineInfo info_;
  const std::shared_ptr<Loads> loads_;
  const std::shared_ptr<Loads> pass_loads_;  // tokens of passes
  mutable std::mutex mutex_;
  PrefixDirectory directory_;  // guarded by mutex_
};

}  // namespace eta
