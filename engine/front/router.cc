#include "engine/front/router.h"

#include <algorithm>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/batching/estimates/prefill_throughput.h"
#include "engine/front/submission_queue.h"
#include "engine/model/rope/rope_base.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

// The keys that an engine makes of the request's prompt.
std::vector<PrefixKey> KeysOf(const PreparedRequest& prepared, const EngineInfo& info) {
  if (!info.prefix_cache) return {};
  const Request& request = prepared.request;
  const int64_t context = prepared.prompt_tokens() + request.stopping.max_tokens;
  return PrefixKeys(request.tenant, RopeTheta(info.config, context),
                    ResolveAttention(request.attention, info.config), info.config.gate,
                    prepared.prompt, info.block_size);
}

// Whether a newcomer would probably be refused there, or displace another.
bool IsFull(const EngineSnapshot& engine, const Limits& limits) {
  return engine.unstarted() >= limits.max_waiting_requests ||
         engine.waiting_tokens >= limits.max_waiting_tokens;
}

// Whether another engine may accept what one refused with `status`.
bool AnotherMayAccept(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || GetErrorDetail(status).reason == "DEVICE_ERROR";
}

// Whether it says when there will be room, which is more than that there never will be, or that a
// device is lost.
bool TellsWhen(const absl::Status& refusal) {
  const ErrorDetail detail = GetErrorDetail(refusal);
  return detail.retry_after.has_value() && detail.reason != "DEVICE_ERROR";
}

}  // namespace

std::vector<uint64_t> PrefixDirectory::Pieces(std::span<const PrefixKey> keys) {
  std::vector<uint64_t> pieces;
  pieces.reserve(keys.size());
  for (const PrefixKey& key : keys) pieces.push_back(PrefixKey::Hash()(key));
  return pieces;
}

PrefixDirectory::Engines PrefixDirectory::Find(uint64_t piece) const {
  const auto young = young_.find(piece);
  const auto old = old_.find(piece);
  return (young == young_.end() ? 0 : young->second) | (old == old_.end() ? 0 : old->second);
}

size_t PrefixDirectory::Seen(const std::vector<uint64_t>& pieces, size_t engine) const {
  size_t seen = 0;
  while (seen < pieces.size() && (Find(pieces[seen]) >> engine & 1) != 0) ++seen;
  return seen;
}

void PrefixDirectory::Remember(const std::vector<uint64_t>& pieces, size_t engine) {
  for (const uint64_t piece : pieces) {
    if (young_.size() >= kMaxPieces / 2) old_ = std::exchange(young_, {});
    young_[piece] |= Engines{1} << engine;
  }
}

Router::Router(std::vector<std::unique_ptr<Engine>> engines, const Limits& limits)
    : engines_(std::move(engines)),
      limits_(limits),
      info_(engines_.front()->info()),
      loads_(std::make_shared<EngineLoads>(engines_.size())),
      pass_loads_(std::make_shared<EngineLoads>(engines_.size())),
      routed_(std::make_shared<RoutedRequests>()),
      link_(std::make_shared<Link>()) {
  {
    const MutexLock lock(link_->mutex);
    link_->router = this;
  }
  for (size_t i = 1; i < engines_.size(); ++i) {
    const EngineInfo& other = engines_[i]->info();
    absl::StrAppend(&info_.backend, "; ", other.backend);
    info_.num_blocks += other.num_blocks;
    info_.pool_tokens += other.pool_tokens;
    info_.max_running += other.max_running;
    info_.weight_bytes += other.weight_bytes;
    info_.kv_bytes += other.kv_bytes;
  }
}

Router::~Router() {
  const MutexLock lock(link_->mutex);
  link_->router = nullptr;
}

absl::StatusOr<int64_t> Router::Check(const Request& request) const {
  absl::Status refusal = DeviceLost("every device has failed");
  for (const auto& engine : engines_) {
    const auto tokens = engine->Check(request);
    if (tokens.ok() || !AnotherMayAccept(tokens.status())) return tokens;
    if (!TellsWhen(refusal)) refusal = tokens.status();
  }
  return refusal;
}

absl::StatusOr<PreparedRequest> Router::Prepare(Request request) const {
  return engines_.front()->Prepare(std::move(request));
}

absl::StatusOr<uint64_t> Router::Submit(PreparedRequest request, std::shared_ptr<EventSink> sink) {
  const auto replace = [link = link_](const PreparedRequest& given_back,
                                      const std::shared_ptr<RoutedSink>& routed, size_t engine) {
    const MutexLock lock(link->mutex);
    return link->router != nullptr && link->router->Place(given_back, routed, engine).ok();
  };
  const auto routed = std::make_shared<RoutedSink>(std::move(sink), loads_, routed_, replace);
  RETURN_IF_ERROR(Place(std::move(request), routed, std::nullopt));
  return routed->handle();
}

absl::Status Router::Place(PreparedRequest request, const std::shared_ptr<RoutedSink>& sink,
                           std::optional<size_t> lost) {
  const std::vector<uint64_t> pieces = PrefixDirectory::Pieces(KeysOf(request, info_));
  absl::Status refusal = DeviceLost("every device has failed");
  std::vector<Choice> choices = Rank(pieces, request);
  std::erase_if(choices, [&](const Choice& choice) { return choice.engine == lost; });
  const uint64_t routed = sink->handle();
  const int32_t moves = sink->moves();
  for (const Choice& choice : choices) {
    const bool last = &choice == &choices.back();
    sink->Charge(choice.engine, choice.cost);
    const auto handle = engines_[choice.engine]->Submit(last ? std::move(request) : request, sink);
    if (handle.ok()) {
      const bool cancelled = routed_->Enter(routed, moves, {choice.engine, *handle});
      if (cancelled) engines_[choice.engine]->Cancel(*handle);
      const MutexLock lock(mutex_);
      directory_.Remember(pieces, choice.engine);
      return absl::OkStatus();
    }
    if (!AnotherMayAccept(handle.status())) return handle.status();
    if (!TellsWhen(refusal)) refusal = handle.status();
  }
  return refusal;
}

absl::StatusOr<uint64_t> Router::SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) {
  const auto tokens = static_cast<int64_t>(pass.tokens.size());
  std::vector<Choice> choices;
  for (size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i]->Snapshot().device_lost) continue;
    choices.push_back({.engine = i, .cost = tokens, .total = (*pass_loads_)[i] + tokens});
  }
  absl::Status refusal = DeviceLost("every device has failed");
  for (const Choice& choice : LeastFirst(std::move(choices))) {
    const auto routed =
        std::make_shared<RoutedPassSink>(sink, pass_loads_, choice.engine, choice.cost, routed_);
    const auto handle = engines_[choice.engine]->SubmitPass(pass, routed);
    if (handle.ok()) {
      // Nobody knows its handle yet, so nobody has cancelled it.
      (void)routed_->Enter(routed->handle(), 0, {choice.engine, *handle});
      return routed->handle();
    }
    refusal = handle.status();
    if (!AnotherMayAccept(refusal)) break;
  }
  return refusal;
}

absl::StatusOr<std::vector<int32_t>> Router::Tokenize(std::string_view text) const {
  return engines_.front()->Tokenize(text);
}

absl::StatusOr<Detokenized> Router::Detokenize(std::span<const int32_t> ids,
                                               bool special_tokens) const {
  return engines_.front()->Detokenize(ids, special_tokens);
}

std::vector<Router::Choice> Router::LeastFirst(std::vector<Choice> choices) {
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::tie(a.late, a.total) < std::tie(b.late, b.total);
  });
  return choices;
}

std::vector<Router::Choice> Router::Rank(const std::vector<uint64_t>& pieces,
                                         const PreparedRequest& request) const {
  const Clock::time_point now = Clock::now();
  const auto sharable = static_cast<size_t>(
      MostSharedBlocks(request.request, request.prompt_tokens(), info_.block_size));
  std::vector<Choice> choices;
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < engines_.size(); ++i) {
    const EngineSnapshot engine = engines_[i]->Snapshot();
    if (engine.device_lost) continue;
    const size_t seen = std::min(directory_.Seen(pieces, i), sharable);
    const int64_t prefill = request.prompt_tokens() - static_cast<int64_t>(seen) * info_.block_size;
    const int64_t cost = prefill + request.request.stopping.max_tokens;
    choices.push_back(
        {.engine = i,
         .cost = cost,
         .total = (*loads_)[i] + cost,
         .late = IsFull(engine, engines_[i]->limits()) ||
                 now + engine.predicted_wait +
                         PrefillTime(prefill, engine.wait_estimate.prefill_throughput) >
                     request.request.deadline});
  }
  return LeastFirst(std::move(choices));
}

void Router::Cancel(uint64_t handle) {
  const auto place = routed_->Cancel(handle);
  if (place) engines_[place->engine]->Cancel(place->handle);
}

void Router::ForgetPrefixes() {
  for (const auto& engine : engines_) engine->ForgetPrefixes();
}

void Router::Drain(Clock::time_point deadline) {
  std::vector<std::thread> drains;
  for (const auto& engine : engines_) drains.emplace_back([&] { engine->Drain(deadline); });
  for (std::thread& drain : drains) drain.join();
}

EngineSnapshot Router::Snapshot() const {
  EngineSnapshot sum;
  sum.device_lost = true;
  for (const EngineSnapshot& device : Devices()) {
    sum.running += device.running;
    sum.paused += device.paused;
    sum.waiting += device.waiting;
    sum.preempted += device.preempted;
    sum.waiting_tokens += device.waiting_tokens;
    sum.passes_running += device.passes_running;
    sum.passes_waiting += device.passes_waiting;
    sum.blocks_used += device.blocks_used;
    sum.blocks_cached += device.blocks_cached;
    sum.blocks_free += device.blocks_free;
    sum.steps += device.steps;
    sum.last_step = std::max(sum.last_step, device.last_step);
    sum.device_lost = sum.device_lost && device.device_lost;
  }
  return sum;
}

std::vector<EngineSnapshot> Router::Devices() const {
  std::vector<EngineSnapshot> devices;
  for (const auto& engine : engines_) devices.push_back(engine->Snapshot());
  return devices;
}

std::vector<TenantQueue> Router::Tenants() const {
  std::map<std::string, TenantQueue> sums;
  for (const auto& engine : engines_) {
    for (const TenantQueue& tenant : engine->Tenants()) {
      TenantQueue& sum = sums[tenant.tenant];
      sum.weight = tenant.weight;
      sum.running += tenant.running;
      sum.paused += tenant.paused;
      sum.waiting += tenant.waiting;
      sum.waiting_tokens += tenant.waiting_tokens;
      sum.kv_tokens += tenant.kv_tokens;
    }
  }
  std::vector<TenantQueue> tenants;
  for (auto& [name, sum] : sums) {
    sum.tenant = name;
    tenants.push_back(std::move(sum));
  }
  return tenants;
}

}  // namespace eta
