#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/batcher.h"
#include "engine/checkpoint.h"
#include "engine/error.h"
#include "engine/request_validation.h"
#include "engine/tokenizer.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// How long the step thread rests when every sequence waits for its reader.
constexpr milliseconds kCongestionPoll{5};

uint64_t RandomSeed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

absl::Status Unavailable(const std::string& reason, const std::string& message) {
  return MakeError(absl::StatusCode::kUnavailable, message, {.reason = reason});
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.max_running < 1) return InvalidField("max_running", "at least 1");
  if (options.max_step_tokens < options.max_running) {
    return InvalidField("max_step_tokens", "at least max_running, so that every stream moves");
  }
  if (options.max_step_tokens > 16384) return InvalidField("max_step_tokens", "at most 16384");
  if (options.limits.max_context < 1) return InvalidField("max_context", "at least 1");
  return absl::OkStatus();
}

// The engine proper: a mailbox in front of the batcher, and the thread that empties it.
class StepEngine final : public Engine {
 public:
  StepEngine(EngineOptions options, Observer* observer)
      : options_(std::move(options)), observer_(observer) {}

  ~StepEngine() override {
    {
      std::lock_guard lock(mutex_);
      draining_ = true;
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Load() {
    if (absl::Status valid = CheckOptions(options_); !valid.ok()) return valid;
    auto checkpoint = Checkpoint::Open(options_.model_dir, {.expected_sha256 = options_.sha256});
    if (!checkpoint.ok()) return checkpoint.status();
    auto backend = MakeBackend(options_.backend);
    if (!backend.ok()) return backend.status();
    backend_ = *std::move(backend);
    auto model = Model::Load(*checkpoint, *backend_,
                             {.weights = options_.weights,
                              .allow_nonfinite_weights = options_.allow_nonfinite_weights,
                              .max_rows = options_.max_step_tokens,
                              .max_context = options_.limits.max_context});
    if (!model.ok()) return model.status();
    model_ = *std::move(model);
    auto tokenizer = Tokenizer::Load(checkpoint->tokenizer_model(), model_->config());
    if (!tokenizer.ok()) return tokenizer.status();
    tokenizer_ = *std::move(tokenizer);

    const KvGeometry geometry = MakeKvGeometry(model_->config(), options_.kv_dtype);
    const auto block_bytes = KvCache::BytesPerBlock(*backend_, model_->config(), geometry);
    if (!block_bytes.ok()) return block_bytes.status();
    const int64_t num_blocks = options_.kv_pool_bytes / *block_bytes;
    if (num_blocks < 2 || num_blocks > std::numeric_limits<int32_t>::max()) {
      return InvalidField("kv_pool_bytes",
                          absl::StrCat("room for at least 2 blocks of ", *block_bytes, " bytes"));
    }
    auto cache =
        KvCache::Create(*backend_, model_->config(), geometry, static_cast<int32_t>(num_blocks));
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    batcher_ =
        std::make_unique<Batcher>(*model_, *cache_,
                                  BatcherOptions{.max_running = options_.max_running,
                                                 .max_step_tokens = options_.max_step_tokens,
                                                 .prefix_cache = options_.prefix_cache,
                                                 .max_congestion = options_.limits.max_congestion},
                                  observer_);

    info_.model_name = options_.model_name;
    if (info_.model_name.empty()) {
      info_.model_name = std::filesystem::weakly_canonical(options_.model_dir).filename().string();
    }
    info_.model_fingerprint = checkpoint->fingerprint();
    info_.config = model_->config();
    info_.config.eos_ids = tokenizer_->eos_ids();
    info_.backend = backend_->description();
    info_.kv_dtype = options_.kv_dtype;
    info_.num_blocks = cache_->num_blocks();
    info_.weight_bytes = model_->weight_bytes();
    info_.kv_bytes = cache_->bytes();
    UpdateSnapshot();
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  const EngineInfo& info() const override { return info_; }
  const Limits& limits() const override { return options_.limits; }

  absl::StatusOr<uint64_t> Submit(Request request, std::shared_ptr<EventSink> sink) override {
    const Clock::time_point arrival = Clock::now();
    if (absl::Status valid = ValidateRequest(request, info_.config, options_.limits); !valid.ok()) {
      return valid;
    }
    if (request.deadline == Clock::time_point::max()) {
      request.deadline = arrival + options_.limits.default_deadline;
    }
    if (request.deadline <= arrival) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, "deadline: already past",
                       {.reason = "DEADLINE_PASSED"});
    }
    // Before any work: is there room at all? How many tokens a text has is known after it.
    const auto* text = std::get_if<std::string>(&request.prompt);
    const int64_t least_tokens =
        text != nullptr ? 1 : static_cast<int64_t>(std::get<1>(request.prompt).size());
    if (absl::Status room = CheckQueue(least_tokens); !room.ok()) return room;

    SequenceOptions sequence;
    if (text != nullptr) {
      auto encoded = tokenizer_->Encode(*text, /*add_bos=*/true);
      if (!encoded.ok()) return encoded.status();
      sequence.prompt = *std::move(encoded);
    } else {
      sequence.prompt = std::get<1>(request.prompt);
    }
    const auto prompt_tokens = static_cast<int64_t>(sequence.prompt.size());
    const int64_t context = prompt_tokens + request.stopping.max_tokens;
    if (absl::Status fits =
            CheckContext(prompt_tokens, request.stopping.max_tokens, options_.limits);
        !fits.ok()) {
      return fits;
    }
    const int64_t block_size = info_.config.block_size;
    if ((context + block_size - 1) / block_size > info_.num_blocks) {
      return MakeError(
          absl::StatusCode::kResourceExhausted,
          "the KV pool is smaller than prompt and max_tokens together",
          {.reason = "KV_POOL_TOO_SMALL",
           .metadata = {{"tokens", absl::StrCat(context)},
                        {"pool_tokens", absl::StrCat(info_.num_blocks * block_size)}}});
    }
    sequence.attention = ResolveAttention(request.attention, info_.config);
    sequence.rope_theta = RopeTheta(info_.config, context);
    sequence.seed = request.sampling.seed ? *request.sampling.seed : RandomSeed();
    sequence.arrival = arrival;
    sequence.share_prefix = options_.prefix_cache;
    sequence.request = std::move(request);
    sequence.sink = std::move(sink);

    std::unique_lock lock(mutex_);
    if (absl::Status room = CheckQueueLocked(prompt_tokens); !room.ok()) return room;
    sequence.handle = ++last_handle_;
    const uint64_t handle = sequence.handle;
    arriving_tokens_ += prompt_tokens;
    ++arriving_requests_;
    lock.unlock();
    // Hashing a long prompt's blocks happens here, on the caller's thread.
    auto made = std::make_unique<Sequence>(std::move(sequence), info_.config, cache_->geometry(),
                                           *tokenizer_);
    lock.lock();
    arriving_tokens_ -= prompt_tokens;
    --arriving_requests_;
    if (draining_ || device_lost_) return Refusal();
    arrivals_.push_back(std::move(made));
    lock.unlock();
    wake_.notify_all();
    return handle;
  }

  void Cancel(uint64_t handle) override {
    {
      std::lock_guard lock(mutex_);
      cancelled_.push_back(handle);
    }
    wake_.notify_all();
  }

  void Drain(Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    wake_.notify_all();
    if (!idle_.wait_until(lock, deadline, [this] { return Idle(); })) {
      abandon_ = true;
      wake_.notify_all();
      idle_.wait(lock, [this] { return Idle(); });
    }
  }

  EngineSnapshot Snapshot() const override {
    std::lock_guard lock(mutex_);
    EngineSnapshot snapshot = snapshot_;
    snapshot.waiting += static_cast<int32_t>(arrivals_.size());
    for (const auto& sequence : arrivals_) snapshot.waiting_tokens += sequence->prompt_len();
    return snapshot;
  }

 private:
  // With mutex_ held.
  bool Idle() const {
    return arrivals_.empty() && snapshot_.running == 0 && snapshot_.waiting == 0;
  }

  absl::Status Refusal() const {
    return device_lost_
               ? Unavailable("DEVICE_ERROR", "the device has failed; the process must restart")
               : Unavailable("DRAINING", "the server is shutting down");
  }

  // Whether a request of `tokens` prompt tokens may join the queue.
  absl::Status CheckQueue(int64_t tokens) {
    std::lock_guard lock(mutex_);
    return CheckQueueLocked(tokens);
  }

  absl::Status CheckQueueLocked(int64_t tokens) const {
    if (draining_ || device_lost_) return Refusal();
    const Limits& limits = options_.limits;
    const int64_t queued = QueuedTokens();
    const int64_t waiting =
        snapshot_.waiting + arriving_requests_ + static_cast<int64_t>(arrivals_.size());
    if (waiting >= limits.max_waiting_requests) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, "the queue is full",
          {.reason = "QUEUE_FULL",
           .metadata = {{"max_waiting_requests", absl::StrCat(limits.max_waiting_requests)}},
           .retry_after = RetryAfter()});
    }
    if (queued > 0 && queued + tokens > limits.max_waiting_tokens) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, "the queue holds too many prompt tokens",
          {.reason = "TOKEN_BUDGET",
           .metadata = {{"max_waiting_tokens", absl::StrCat(limits.max_waiting_tokens)}},
           .retry_after = RetryAfter()});
    }
    return absl::OkStatus();
  }

  int64_t QueuedTokens() const {
    int64_t tokens = snapshot_.waiting_tokens + arriving_tokens_;
    for (const auto& sequence : arrivals_) tokens += sequence->prompt_len();
    return tokens;
  }

  // When what is ahead now will have been worked off.
  milliseconds RetryAfter() const {
    return PredictRetry(QueuedTokens() + prefill_tokens_, prefill_rate_);
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    bool progress = true;
    while (true) {
      if (!progress) {
        const auto called = [this] {
          return stop_ || abandon_ || !arrivals_.empty() || !cancelled_.empty();
        };
        if (Idle()) {
          idle_.notify_all();
          wake_.wait(lock, called);
        } else {
          wake_.wait_for(lock, kCongestionPoll, called);
        }
      }
      auto arrivals = std::exchange(arrivals_, {});
      const auto cancelled = std::exchange(cancelled_, {});
      const bool abandon = std::exchange(abandon_, false) || stop_;
      const bool stop = stop_;
      const bool lost = device_lost_;
      for (const auto& sequence : arrivals) {  // waiting still, until the step has seated them
        ++snapshot_.waiting;
        snapshot_.waiting_tokens += sequence->prompt_len();
      }
      lock.unlock();

      for (auto& sequence : arrivals) batcher_->Add(std::move(sequence), Clock::now());
      for (const uint64_t handle : cancelled) batcher_->Cancel(handle);
      if (lost) {
        batcher_->FailAll(Unavailable("DEVICE_ERROR", "the device has failed"));
      } else if (abandon) {
        batcher_->FailAll(Unavailable("DRAINING", "the server is shutting down"));
      }
      const auto stepped = batcher_->Step(Clock::now());
      progress = stepped.value_or(false);

      lock.lock();
      if (!stepped.ok()) device_lost_ = true;
      if (progress) {
        ++snapshot_.steps;
        snapshot_.last_step = Clock::now();
      }
      UpdateSnapshot();
      if (Idle()) idle_.notify_all();
      if (stop) return;
    }
  }

  // With mutex_ held, or before the thread starts.
  void UpdateSnapshot() {
    snapshot_.running = batcher_->num_running();
    snapshot_.waiting = batcher_->num_waiting();
    snapshot_.waiting_tokens = batcher_->queued_tokens();
    snapshot_.blocks_used = batcher_->pool().num_used();
    snapshot_.blocks_cached = batcher_->pool().num_cached();
    snapshot_.blocks_free = batcher_->pool().num_free();
    snapshot_.device_lost = device_lost_;
    prefill_tokens_ = batcher_->prefill_tokens();
    prefill_rate_ = batcher_->prefill_rate();
  }

  const EngineOptions options_;
  Observer* const observer_;
  EngineInfo info_;

  // Built by Load; used by the step thread alone, but for the tokenizer, which is stateless.
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Batcher> batcher_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<Sequence>> arrivals_;
  std::vector<uint64_t> cancelled_;
  int64_t arriving_tokens_ = 0;  // of sequences being made
  int32_t arriving_requests_ = 0;
  uint64_t last_handle_ = 0;
  bool draining_ = false;
  bool abandon_ = false;
  bool stop_ = false;
  bool device_lost_ = false;
  EngineSnapshot snapshot_;
  int64_t prefill_tokens_ = 0;
  double prefill_rate_ = 0.0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       Observer* observer) {
  auto engine = std::make_unique<StepEngine>(options, observer);
  if (absl::Status loaded = engine->Load(); !loaded.ok()) return loaded;
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace eta
