#include "engine/front/step_engine.h"

#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <new>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_parts.h"
#include "engine/format/compiler/make_format_compiler.h"
#include "engine/front/warm_up.h"
#include "engine/model/generation_config.h"
#include "engine/model/model_fingerprint.h"
#include "engine/model/rope/rope_base.h"
#include "engine/model/selection_lists.h"
#include "engine/passes/pass_cells.h"
#include "engine/request/pass_validation.h"
#include "engine/request/request_validation.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr int64_t kDefaultPoolBytes = int64_t{1} << 30;  // where the device tells no free memory
constexpr int32_t kDefaultStepTokens = 256;
// A GPU is full of work with about this many rows of a prompt.
constexpr int32_t kDefaultGpuStepTokens = 2048;

uint64_t RandomSeed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.max_running < 1) return InvalidField("max_running", "at least 1");
  if (options.max_step_tokens < options.max_running) {
    return InvalidField("max_step_tokens", "at least max_running, so that every stream moves");
  }
  if (options.max_step_tokens > 16384) return InvalidField("max_step_tokens", "at most 16384");
  if (!(options.shadow_rate >= 0.0 && options.shadow_rate <= 1.0)) {
    return InvalidField("shadow_rate", "0 to 1");
  }
  if (options.limits.max_context < 1) return InvalidField("max_context", "at least 1");
  // Before the weights are read; ChatPrompts::Create does it again with the model's tokens.
  if (options.chat_template) return ChatPrompts::Check(*options.chat_template);
  return absl::OkStatus();
}

// What did not fit, how much the device still has, and the allocation that failed.
absl::Status NoMemory(const Backend& backend, const std::string& what, const absl::Status& cause) {
  const absl::StatusOr<size_t> free_bytes = backend.FreeMemory();
  return absl::ResourceExhaustedError(
      absl::StrCat(what, free_bytes.ok() ? absl::StrCat(" (", *free_bytes, " bytes are free)") : "",
                   ": ", cause.message()));
}

// By what keys and values are computed, beside what a PrefixKey holds.
std::string Computed(const EngineInfo& info, const BackendOptions& backend) {
  std::string text = info.model_fingerprint;
  for (const std::string_view part : {Name(info.kv_dtype), Name(info.weights),
                                      std::string_view(backend.name), Name(backend.compute)}) {
    text.append(";").append(part);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> StepEngine::Create(const EngineOptions& options,
                                                           const Checkpoint& checkpoint,
                                                           std::unique_ptr<Backend> backend,
                                                           Observer* observer,
                                                           std::shared_ptr<LiveMass> live_mass) {
  if (live_mass == nullptr) live_mass = std::make_shared<LiveMass>();
  std::unique_ptr<StepEngine> engine(
      new StepEngine(options, std::move(backend), observer, std::move(live_mass)));
  const absl::Status loaded = engine->Load(checkpoint);
  if (!loaded.ok()) return checkpoint.Naming(loaded);
  return std::unique_ptr<Engine>(std::move(engine));
}

StepEngine::StepEngine(const EngineOptions& options, std::unique_ptr<Backend> backend,
                       Observer* observer, std::shared_ptr<LiveMass> live_mass)
    : options_(options),
      observer_(observer),
      backend_(std::move(backend)),
      live_mass_(std::move(live_mass)),
      queue_(options.limits) {
  if (options_.max_step_tokens == 0) {
    const int32_t usual = OnGpu() ? kDefaultGpuStepTokens : kDefaultStepTokens;
    options_.max_step_tokens = std::max(usual, options_.max_running);
  }
}

StepEngine::~StepEngine() {
  queue_.Stop();
  if (thread_.joinable()) thread_.join();
}

absl::Status StepEngine::Load(const Checkpoint& checkpoint) {
  RETURN_IF_ERROR(CheckOptions(options_));
  // A cache that the backend does not have is refused before the weights are read.
  ASSIGN_OR_RETURN(auto of_model, ParseModelConfig(checkpoint.config_json()));
  of_model = ForContext(std::move(of_model), options_.limits.max_context);
  ModelConfig config = of_model;
  config.index = options_.index.value_or(config.index);
  RETURN_IF_ERROR(CheckSpeculation(options_.speculation, config));
  RETURN_IF_ERROR(
      backend_->Layout(MakeKvGeometry(config, options_.kv_dtype, options_.index_dtype)).status());
  auto model =
      Model::Load(checkpoint, *backend_,
                  {.weights = options_.weights,
                   .allow_nonfinite_weights = options_.allow_nonfinite_weights,
                   .max_rows = options_.max_step_tokens,
                   .max_decode_rows = MaxDecodeRows(config, options_.limits.max_context,
                                                    options_.max_running, options_.max_step_tokens),
                   .max_context = options_.limits.max_context,
                   .index = config.index});
  if (absl::IsResourceExhausted(model.status())) {
    return NoMemory(*backend_, "the model's weights and workspace do not fit", model.status());
  }
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  RETURN_IF_ERROR(LoadText(checkpoint));
  RETURN_IF_ERROR(ReserveCache());
  if (OnGpu()) {
    const int32_t max_rows = std::min(options_.max_step_tokens, options_.limits.max_context - 1);
    const absl::Status warm = WarmUp(*backend_, *model_, *cache_, max_rows);
    if (!warm.ok()) {
      return absl::Status(warm.code(), absl::StrCat("the device's first steps: ", warm.message()));
    }
  }
  info_.model_name = options_.model_name;
  if (info_.model_name.empty()) {
    const std::filesystem::path path = options_.model_dir;
    std::error_code error;
    info_.model_name = std::filesystem::is_directory(path, error)
                           ? std::filesystem::weakly_canonical(path).filename().string()
                           : GgufModelName(path.filename().string());
  }
  ASSIGN_OR_RETURN(info_.model_fingerprint, ModelFingerprint(of_model, checkpoint));
  info_.tokenizer_fingerprint = checkpoint.tokenizer_fingerprint();
  info_.config = model_->config();
  info_.config.eos_ids = tokenizer_->eos_ids();
  info_.beginning = tokenizer_->beginning();
  info_.backend = backend_->description();
  info_.kv_dtype = options_.kv_dtype;
  info_.weights = options_.weights;
  info_.index_dtype = cache_->geometry().index_dtype;
  info_.index = cache_->geometry().index;
  info_.index_metric = checkpoint.index_metric() != nullptr;
  info_.max_token_bytes = tokenizer_->max_token_bytes();
  info_.block_size = cache_->geometry().block_size;
  info_.sub_block = cache_->geometry().sub_block;
  info_.num_blocks = cache_->num_blocks();
  const LayerGroups& groups = cache_->groups();
  // Windows alone hold sequences of any length.
  info_.pool_tokens = groups.MostTokens(
      info_.num_blocks, options_.max_step_tokens, info_.block_size,
      std::max(int64_t{info_.num_blocks} * info_.block_size, int64_t{options_.limits.max_context}));
  info_.max_running = options_.max_running;
  info_.left_out_tensors = checkpoint.left_out_tensors();
  info_.weight_bytes = model_->weight_bytes();
  info_.kv_bytes = cache_->bytes();
  info_.prefix_cache = options_.prefix_cache;
  info_.chat_refusal = chats_->refusal();
  info_.answer_form = chats_->form();
  info_.chat_template_refused = chats_->template_refused();
  if (options_.kv_events != nullptr) {
    recorder_ = std::make_unique<KvEventRecorder>(
        options_.kv_events, Computed(info_, options_.backend), groups.windows);
  }
  dispatcher_ =
      std::make_unique<Dispatcher>(*backend_, *model_, *cache_,
                                   BatcherOptions{.max_running = options_.max_running,
                                                  .max_step_tokens = options_.max_step_tokens,
                                                  .max_decode_rows = model_->max_decode_rows(),
                                                  .prefix_cache = options_.prefix_cache,
                                                  .shadow_rate = options_.shadow_rate,
                                                  .live_mass = live_mass_,
                                                  .max_congestion = options_.limits.max_congestion},
                                   observer_, recorder_.get());
  intake_ = std::make_unique<RequestIntake>(info_, options_.limits, *tokenizer_, *chats_);
  queue_.Report(Sample());
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "eta-step");
  return absl::OkStatus();
}

// What makes tokens of texts and prompts of chats.
absl::Status StepEngine::LoadText(const Checkpoint& checkpoint) {
  ModelConfig config = model_->config();
  if (checkpoint.generation_config_json()) {
    RETURN_IF_ERROR(ReadGenerationConfig(*checkpoint.generation_config_json(), config));
  }
  TokenizerFiles files = checkpoint.tokenizer_files();
  if (options_.chat_template) files.chat_template = options_.chat_template;
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(files, config));
  ASSIGN_OR_RETURN(chats_, ChatPrompts::Create({.of_model = checkpoint.chat_template(),
                                                .given = options_.chat_template},
                                               *tokenizer_));
  ASSIGN_OR_RETURN(formats_,
                   MakeFormatCompiler(options_.formats, options_.format_helper, *tokenizer_));
  if (options_.keep_tokenizer_files) {
    info_.tokenizer_files = std::make_shared<const TokenizerFiles>(std::move(files));
  }
  return absl::OkStatus();
}

// After the weights and the workspace, so that what is free now is free for good, but for what the
// backend takes later.
absl::Status StepEngine::ReserveCache() {
  const KvGeometry geometry =
      MakeKvGeometry(model_->config(), options_.kv_dtype, options_.index_dtype);
  ASSIGN_OR_RETURN(const auto block_bytes,
                   KvCache::BytesPerBlock(*backend_, model_->config(), geometry));
  ASSIGN_OR_RETURN(const int64_t pool_bytes, PoolBytes(geometry));
  const int64_t num_blocks = pool_bytes / block_bytes;
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  if (num_blocks < 2 || num_blocks > kMaxBlocks) {
    return InvalidField("kv_pool_bytes", absl::StrCat("room for 2 to ", kMaxBlocks, " blocks of ",
                                                      block_bytes, " bytes, not ", pool_bytes));
  }
  auto cache =
      KvCache::Create(*backend_, model_->config(), geometry, static_cast<int32_t>(num_blocks));
  if (absl::IsResourceExhausted(cache.status())) {
    return NoMemory(*backend_,
                    absl::StrCat("a KV cache of ", pool_bytes,
                                 " bytes does not fit; lower kv_pool_bytes or kv_pool_fraction"),
                    cache.status());
  }
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StepEngine::PoolBytes(const KvGeometry& geometry) const {
  if (options_.kv_pool_bytes > 0) return options_.kv_pool_bytes;
  const absl::StatusOr<size_t> free_bytes = backend_->FreeMemory();
  if (absl::IsUnimplemented(free_bytes.status())) return kDefaultPoolBytes;
  if (!free_bytes.ok()) return free_bytes.status();
  const size_t cells =
      static_cast<size_t>(PassCells::Count(model_->config(), ScoreBins())) * sizeof(uint64_t);
  const size_t late =
      backend_->LateMemory(geometry, model_->config().num_query_heads, options_.limits.max_context,
                           options_.max_step_tokens, model_->max_decode_rows()) +
      cells;
  return static_cast<int64_t>(options_.kv_pool_fraction *
                              static_cast<double>(*free_bytes - std::min(late, *free_bytes)));
}

absl::StatusOr<int64_t> StepEngine::Check(const Request& request) const {
  RETURN_IF_ERROR(intake_->Validate(request, Clock::now()));
  const int64_t tokens = intake_->LeastPromptTokens(request);
  RETURN_IF_ERROR(queue_.Check(tokens, request));
  RETURN_IF_ERROR(intake_->CheckLeastContext(request, tokens));
  return tokens;
}

absl::StatusOr<PreparedRequest> StepEngine::Prepare(Request request) const {
  return intake_->Prepare(std::move(request));
}

absl::StatusOr<uint64_t> StepEngine::Submit(PreparedRequest prepared,
                                            std::shared_ptr<EventSink> sink) {
  if (ETA_FAILPOINT(kEngineSubmit)) return OutOfMemory();
  // It would have nothing to compute, and no step would end it.
  if (prepared.prompt.empty()) return InvalidField("prompt", "must have a token");
  const int64_t context = prepared.prompt_tokens() + prepared.request.stopping.max_tokens;
  RETURN_IF_ERROR(CheckPool(prepared.prompt_tokens() + 1, "the prompt and a token of the answer"));
  RETURN_IF_ERROR(CheckPool(context, "prompt and max_tokens together"));
  ASSIGN_OR_RETURN(auto place, queue_.Reserve(prepared.prompt_tokens(), prepared.request));

  SequenceOptions sequence;
  sequence.handle = place.handle();
  sequence.prompt = std::move(prepared.prompt);
  sequence.attention = ResolveAttention(prepared.request.attention, info_.config);
  sequence.rope_factor = RopeFactor(info_.config, context);
  sequence.rope_theta = RopeTheta(info_.config, context);
  sequence.seed = prepared.request.sampling.seed ? *prepared.request.sampling.seed : RandomSeed();
  sequence.arrival = prepared.arrival;
  if (sequence.attention.begin == Begin::kFullWhereRecentMassWasLow) {
    const bool full =
        live_mass_->BeginsFull(prepared.request.tenant, sequence.attention, Clock::now());
    sequence.attention.begin = full ? Begin::kFull : Begin::kAsAsked;
  }
  sequence.share_prefix = options_.prefix_cache;
  sequence.drafts = {.speculation = options_.speculation, .exact = backend_->exact_rows()};
  sequence.request = std::move(prepared.request);
  sequence.sink = std::move(sink);
  // Hashing a long prompt's blocks happens here, on the caller's thread.
  auto made = std::make_unique<Sequence>(std::move(sequence), info_.config, cache_->geometry(),
                                         *tokenizer_);
  RETURN_IF_ERROR(queue_.Join(place, std::move(made)));
  return place.handle();
}

absl::Status StepEngine::CheckPool(int64_t tokens, const std::string& what) const {
  const int64_t pool_tokens = info_.pool_tokens;
  if (tokens <= pool_tokens) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, absl::StrCat("the KV pool is smaller than ", what),
      {.reason = "KV_POOL_TOO_SMALL",
       .metadata = {{"tokens", absl::StrCat(tokens)}, {"pool_tokens", absl::StrCat(pool_tokens)}}});
}

absl::StatusOr<uint64_t> StepEngine::SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) {
  RETURN_IF_ERROR(ValidatePass(pass, info_, options_.limits));
  const auto tokens = static_cast<int64_t>(pass.tokens.size());
  RETURN_IF_ERROR(CheckPool(tokens, "the pass's sequence"));
  PassRunOptions run;
  run.attention = ResolveAttention(pass.attention, info_.config);
  run.rope_theta = RopeTheta(info_.config, tokens);
  if (run.attention.temper_special) {
    run.tempered = TemperedKeys(tokenizer_->special_ids(), tokens);
    run.tempered.Append(pass.tokens);
  }
  run.pass = std::move(pass);
  run.sink = std::move(sink);

  const uint64_t handle = queue_.NewHandle();
  run.handle = handle;
  auto made = std::make_unique<PassRun>(std::move(run), info_.config);
  RETURN_IF_ERROR(queue_.Join(std::move(made)));
  return handle;
}

absl::StatusOr<std::vector<int32_t>> StepEngine::Tokenize(std::string_view text) const {
  if (!tokenizer_->knows_text()) return NoTextError();
  RETURN_IF_ERROR(ValidateText(text, options_.limits));
  auto tokens = tokenizer_->Encode(text, /*add_bos=*/true);
  if (!tokens.ok()) return InField("text", tokens.status());
  return tokens;
}

absl::StatusOr<Detokenized> StepEngine::Detokenize(std::span<const int32_t> ids,
                                                   bool special_tokens) const {
  return intake_->Detokenize(ids, special_tokens);
}

void StepEngine::Cancel(uint64_t handle) {
  queue_.Cancel(handle);
}

void StepEngine::Drain(Clock::time_point deadline) {
  queue_.Drain(deadline);
}

EngineSnapshot StepEngine::Snapshot() const {
  return queue_.Snapshot();
}

std::vector<TenantQueue> StepEngine::Tenants() const {
  return queue_.Tenants();
}

void StepEngine::Loop() {
  bool progress = true;
  while (true) {
    SubmissionQueue::Submissions submissions = queue_.Receive(/*rest=*/!progress);
    SubmissionQueue::State state;
    try {
      Deliver(submissions);
      const auto stepped = dispatcher_->Step(Clock::now());
      progress = stepped.value_or(false);
      if (recorder_ != nullptr) recorder_->Flush(/*wait=*/!progress);
      if (!stepped.ok()) snapshot_.device_lost = true;
      if (progress) {
        ++snapshot_.steps;
        snapshot_.last_step = Clock::now();
      }
      state = Sample();
    } catch (const std::bad_alloc&) {
      return EndForMemory(std::move(submissions));
    }
    queue_.Report(std::move(state));
    if (submissions.stop) return;
  }
}

void StepEngine::Deliver(SubmissionQueue::Submissions& submissions) {
  Batcher& batcher = dispatcher_->batcher();
  if (submissions.forget) dispatcher_->ForgetPrefixes();
  for (auto& sequence : submissions.requests) batcher.Add(std::move(sequence), Clock::now());
  for (auto& pass : submissions.passes) dispatcher_->passes().Add(std::move(pass));
  for (const auto& [handle, status] : submissions.displaced) batcher.Refuse(handle, status);
  for (const uint64_t handle : submissions.cancelled) dispatcher_->Cancel(handle);
  if (snapshot_.device_lost) {
    dispatcher_->Lose(DeviceLost("the device has failed"));
  } else if (submissions.abandon) {
    dispatcher_->FailAll(ShuttingDown());
  } else if (submissions.draining) {
    dispatcher_->passes().FailAll(ShuttingDown());
  }
}

void StepEngine::EndForMemory(SubmissionQueue::Submissions submissions) {
  // Who is told and comes again is refused.
  SubmissionQueue::Submissions late = queue_.Close();
  dispatcher_->Abandon();
  for (SubmissionQueue::Submissions* unread : {&submissions, &late}) {
    unread->requests.clear();
    unread->passes.clear();
  }
  snapshot_.device_lost = true;
  snapshot_.out_of_memory = true;
  snapshot_.running = 0;
  snapshot_.paused = 0;
  snapshot_.predicted_wait = {};
  snapshot_.preempted = 0;
  snapshot_.passes_running = 0;
  snapshot_.passes_waiting = 0;
  queue_.Report({.snapshot = snapshot_});
}

SubmissionQueue::State StepEngine::Sample() {
  Batcher& batcher = dispatcher_->batcher();
  const RequestQueue& queue = batcher.queue();
  const Clock::time_point now = Clock::now();
  snapshot_.running = batcher.num_running();
  snapshot_.paused = batcher.num_paused();
  snapshot_.preempted = queue.num_preempted();
  snapshot_.passes_running = dispatcher_->passes().num_running();
  snapshot_.passes_waiting = dispatcher_->passes().num_waiting();
  snapshot_.blocks_used = dispatcher_->pool().num_used();
  snapshot_.blocks_cached = dispatcher_->pool().num_cached();
  snapshot_.blocks_free = dispatcher_->pool().num_free();
  const int64_t prefill_tokens = batcher.prefill_tokens();
  snapshot_.predicted_wait = queue.PredictedWait(
      queue.size(), queue.unstarted_tokens() + prefill_tokens, batcher.slots_taken(), now);
  snapshot_.wait_estimate = queue.wait_estimate();
  return {.snapshot = snapshot_,
          .tenants = batcher.Tenants(now),
          .left = batcher.DrainLeft(),
          .prefill_tokens = prefill_tokens};
}

}  // namespace eta
