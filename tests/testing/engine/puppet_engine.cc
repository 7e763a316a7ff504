#include "tests/testing/engine/puppet_engine.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/front/submission_queue.h"
#include "engine/request/pass_validation.h"
#include "engine/request/request_validation.h"

namespace eta::testing {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kPoll{5};

ModelConfig PuppetModel() {
  ModelConfig config;
  config.vocab_size = 1000;
  config.model_dim = 64;
  config.ffn_dim = 128;
  config.num_layers = 2;
  config.num_query_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.norm_eps = 1e-5f;
  config.rope_theta = 10000.0f;
  config.max_context = 4096;
  config.has_predictor = true;
  config.gate = Gate::kSilu;
  config.bos_id = 1;
  config.eos_ids = {2};
  return config;
}

// A line for each message.
std::string Rendered(const Chat& chat) {
  std::string text;
  for (const ChatMessage& message : chat.messages) {
    text += message.role + ": " + message.content + "\n";
  }
  return text;
}

}  // namespace

PuppetCall::PuppetCall(uint64_t handle, Request request, std::shared_ptr<EventSink> sink)
    : handle_(handle), request_(std::move(request)), sink_(std::move(sink)) {}

void PuppetCall::Start(int32_t prompt_tokens) {
  StartedEvent event;
  event.request_id = request_.id;
  event.prompt_tokens = prompt_tokens;
  event.seed = request_.sampling.seed.value_or(7);
  event.rope_theta = 10000.0f;
  event.attention = ResolveAttention(request_.attention, PuppetModel());
  sink_->OnStarted(std::move(event));
}

void PuppetCall::Say(const std::string& text, std::vector<TextMark> marks) {
  ++output_tokens_;
  sink_->OnDelta({.text = text, .marks = std::move(marks)});
}

void PuppetCall::Finish(FinishReason reason) {
  FinishedEvent event;
  event.reason = reason;
  event.prompt_tokens = 3;
  event.output_tokens = output_tokens_;
  ended_ = true;
  sink_->OnFinished(std::move(event));
}

void PuppetCall::Fail(const absl::Status& status) {
  FinishedEvent so_far;
  so_far.output_tokens = output_tokens_;
  ended_ = true;
  sink_->OnFailed(status, std::move(so_far));
}

bool PuppetCall::Congested() const {
  return sink_->Congested();
}

void PuppetCall::Forget() {
  sink_.reset();
}

void PuppetPass::End(absl::StatusOr<PassOutcome> outcome) {
  ended_ = true;
  sink_->OnEnded(std::move(outcome));
}

PuppetEngine::PuppetEngine(Limits limits) : limits_(limits) {
  info_.model_name = "puppet";
  info_.model_fingerprint = std::string(64, '0');
  info_.tokenizer_fingerprint = std::string(64, '1');
  info_.config = PuppetModel();
  info_.beginning = {info_.config.bos_id};
  info_.backend = "strings";
  info_.kv_dtype = DType::kFloat16;
  info_.index_dtype = DType::kFloat16;
  info_.max_token_bytes = 1;
  info_.block_size = 64;
  info_.sub_block = 4;
  info_.num_blocks = 64;
  info_.pool_tokens = 64 * 64;
  info_.weight_bytes = 0;
  info_.kv_bytes = 0;
}

void PuppetEngine::Refuse(absl::Status status) {
  const std::lock_guard lock(mutex_);
  refusals_.push_back(std::move(status));
}

std::shared_ptr<PuppetCall> PuppetEngine::TakeCall() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this] { return taken_ < calls_.size(); }))
    return nullptr;
  return calls_[taken_++];
}

std::shared_ptr<PuppetCall> PuppetEngine::TakeAndStart() {
  auto call = TakeCall();
  if (call == nullptr) throw std::runtime_error("no call came");
  call->Start();
  return call;
}

std::shared_ptr<PuppetPass> PuppetEngine::TakePass() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this] { return taken_passes_ < passes_.size(); })) {
    return nullptr;
  }
  return passes_[taken_passes_++];
}

bool PuppetEngine::AwaitCancel(uint64_t handle) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] {
    return std::find(cancelled_.begin(), cancelled_.end(), handle) != cancelled_.end();
  });
}

void PuppetEngine::SetSnapshot(const EngineSnapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  snapshot_ = snapshot;
}

int PuppetEngine::submissions() const {
  const std::lock_guard lock(mutex_);
  return submissions_;
}

absl::StatusOr<int64_t> PuppetEngine::Check(const Request& request) const {
  if (absl::Status valid = ValidateRequest(request, info_, limits_); !valid.ok()) return valid;
  if (std::holds_alternative<Chat>(request.prompt)) return 1;
  const auto* text = std::get_if<std::string>(&request.prompt);
  return text != nullptr ? LeastTokens(text->size(), info_)
                         : static_cast<int64_t>(std::get<1>(request.prompt).size());
}

absl::StatusOr<PreparedRequest> PuppetEngine::Prepare(Request request) const {
  if (absl::Status valid = ValidateRequest(request, info_, limits_); !valid.ok()) return valid;
  PreparedRequest prepared{.request = std::move(request), .prompt = {}, .arrival = Clock::now()};
  const auto* text = std::get_if<std::string>(&prepared.request.prompt);
  const auto* chat = std::get_if<Chat>(&prepared.request.prompt);
  if (text != nullptr || chat != nullptr) {
    auto ids = Tokenize(text != nullptr ? *text : Rendered(*chat));
    if (!ids.ok()) return ids.status();
    if (!prepared.request.add_beginning) ids->erase(ids->begin());
    prepared.prompt = *std::move(ids);
    prepared.request.in_reasoning = chat != nullptr && in_reasoning_;
  } else {
    prepared.prompt = std::get<1>(prepared.request.prompt);
  }
  return prepared;
}

absl::StatusOr<uint64_t> PuppetEngine::Submit(PreparedRequest request,
                                              std::shared_ptr<EventSink> sink) {
  const std::lock_guard lock(mutex_);
  ++submissions_;
  if (draining_) return ShuttingDown();
  if (!refusals_.empty()) {
    const absl::Status refusal = refusals_.front();
    refusals_.erase(refusals_.begin());
    if (!refusal.ok()) return refusal;
  }
  const uint64_t handle = ++last_handle_;
  calls_.push_back(
      std::make_shared<PuppetCall>(handle, std::move(request.request), std::move(sink)));
  changed_.notify_all();
  return handle;
}

absl::StatusOr<uint64_t> PuppetEngine::SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) {
  if (absl::Status valid = ValidatePass(pass, info_, limits_); !valid.ok()) return valid;
  const std::lock_guard lock(mutex_);
  if (draining_) return ShuttingDown();
  const uint64_t handle = ++last_handle_;
  passes_.push_back(std::make_shared<PuppetPass>(handle, std::move(pass), std::move(sink)));
  changed_.notify_all();
  return handle;
}

absl::StatusOr<std::vector<int32_t>> PuppetEngine::Tokenize(std::string_view text) const {
  if (absl::Status valid = ValidateText(text, limits_); !valid.ok()) return valid;
  tokenized_bytes_ += static_cast<int64_t>(text.size());
  std::vector<int32_t> ids = info_.beginning;
  for (const char byte : text) ids.push_back(3 + static_cast<uint8_t>(byte));
  return ids;
}

absl::StatusOr<Detokenized> PuppetEngine::Detokenize(std::span<const int32_t> ids,
                                                     bool special_tokens) const {
  if (absl::Status valid = ValidateTokenIds(ids, info_, limits_); !valid.ok()) return valid;
  Detokenized result;
  for (const int32_t id : ids) {
    const bool special = id < 3;
    const std::string bytes =
        special ? absl::StrCat("<", id, ">") : std::string(1, static_cast<char>(id - 3));
    if (!special || special_tokens) result.text += bytes;
    result.tokens.text += bytes;
    result.tokens.ends.push_back(static_cast<int32_t>(result.tokens.text.size()));
    result.tokens.special.push_back(special);
  }
  return result;
}

void PuppetEngine::Cancel(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(handle);
  changed_.notify_all();
}

void PuppetEngine::Drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto all_ended = [this] {
    return std::all_of(calls_.begin(), calls_.end(),
                       [](const auto& call) { return call->ended(); });
  };
  const absl::Status over = ShuttingDown();
  const auto passes = passes_;
  lock.unlock();
  for (const auto& pass : passes) {
    if (!pass->ended()) pass->End(over);
  }
  lock.lock();
  while (!all_ended() && Clock::now() < deadline) changed_.wait_for(lock, kPoll);
  const auto left = calls_;
  lock.unlock();
  for (const auto& call : left) {
    if (!call->ended()) call->Fail(over);
  }
}

EngineSnapshot PuppetEngine::Snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

std::vector<TenantQueue> PuppetEngine::Tenants() const {
  const std::lock_guard lock(mutex_);
  return tenants_;
}

void PuppetEngine::SetTenants(std::vector<TenantQueue> tenants) {
  const std::lock_guard lock(mutex_);
  tenants_ = std::move(tenants);
}

}  // namespace eta::testing
