// The engine: takes requests, batches them continuously, answers through their sinks.
//
// Per device one step thread owns a copy of the model, a KV cache and the sequences sent there.
// All functions may be called from any thread. Destruction ends what is left with UNAVAILABLE.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/estimates/wait_estimate.h"
#include "engine/batching/fairness/tenant_queue.h"
#include "engine/batching/kv_events/kv_event_log.h"
#include "engine/format/compiler/helper_compiler.h"
#include "engine/format/format_compiler.h"
#include "engine/model/model_config.h"
#include "engine/request/engine_info.h"
#include "engine/request/limits.h"
#include "engine/request/observer.h"
#include "engine/request/pass.h"
#include "engine/request/prepared_request.h"
#include "engine/request/request.h"
#include "kernels/backend.h"
#include "kernels/backends/make_backend.h"

namespace eta {

struct EngineOptions {
  std::string model_dir;           // a folder, or a GGUF file
  std::string model_name;          // empty: the folder's name, or the file's without .gguf
  BackendOptions backend;          // its device is taken from `devices`
  std::vector<int> devices = {0};  // one engine on each; only backend cuda has more than one
  // float32 doubles the cache's bytes per token, float8_e4m3 halves them. Backend cpu has neither
  // float8_e4m3 nor an int8 index.
  DType kv_dtype = DType::kFloat16;
  std::optional<IndexKind> index;    // what block records say; absent: as the model's config says
  std::optional<DType> index_dtype;  // of block records: MakeKvGeometry (model/kv_cache.h)
  WeightFormat weights = WeightFormat::kNative;
  // Per device, reserved at start; bounds the tokens in flight. 0: kv_pool_fraction of the memory
  // that is free after weights and workspace; 1 GiB where the backend does not tell.
  int64_t kv_pool_bytes = 0;
  double kv_pool_fraction = 0.9;  // (0, 1]
  int32_t max_running = 64;       // sequences in one batch, per device
  // Rows of one step. More rows prefill faster, and hold running streams up for longer. 0: 2048 on
  // cuda, else 256; at least max_running.
  int32_t max_step_tokens = 0;
  bool prefix_cache = true;                      // share full prompt blocks between requests
  Speculation speculation = Speculation::kAuto;  // of requests that do not say
  // Is told what all devices' prefix caches store and remove; null: nobody is.
  std::shared_ptr<KvEventLog> kv_events;
  // Share of the decode row-layers, [0, 1], that are also computed with full attention, to tell
  // what reading less costs (request/shadow/shadow_sampler.h); 0: only those of requests with
  // min_mass.
  double shadow_rate = 0.001;
  bool allow_nonfinite_weights = false;
  bool keep_tokenizer_files = false;         // EngineInfo has them
  std::optional<std::string> chat_template;  // its source; counts instead of the model's own
  // In which formats of answers are compiled, and outlives the engine; null: all are refused.
  FormatHelper* format_helper = nullptr;
  FormatOptions formats;
  std::map<std::string, std::string>
      sha256;  // file name -> hex digest that it must have; empty: any
  Limits limits;
};

struct EngineSnapshot {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t preempted = 0;       // of those that wait: they ran already, so that no limit counts them
  int64_t waiting_tokens = 0;  // of prompts that have not run yet
  int32_t passes_running = 0;  // hold blocks, beside those of requests
  int32_t passes_waiting = 0;
  int32_t blocks_used = 0;
  int32_t blocks_cached = 0;
  int32_t blocks_free = 0;
  int64_t steps = 0;
  Clock::time_point last_step{};  // end of the newest step; the default before the first
  bool device_lost = false;       // every call is refused with UNAVAILABLE; restart the process
  bool out_of_memory = false;     // likewise, since the host had no memory for a step
  int32_t paused = 0;             // of those that run: no slot, their readers are or were behind
  // How long a request that comes now waits for a slot and for prompts before its own, if all that
  // waits goes first; zero: not at all, or not known.
  std::chrono::milliseconds predicted_wait{0};
  WaitEstimate wait_estimate;  // what that is predicted from; of several devices together: not set

  int32_t unstarted() const { return waiting - preempted; }
};

class Engine {
 public:
  // Loads the model and starts the step threads. `observer` may be null and must outlive the
  // engine. Errors: INVALID_ARGUMENT for options, those of Checkpoint::Open, MakeBackend and
  // StepEngine::Create.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        Observer* observer = nullptr);
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual const Limits& limits() const = 0;

  // What compiles the formats of answers (Request::format); the same for all devices. Any thread.
  virtual FormatCompiler& formats() = 0;

  // A request comes in by Check, Prepare and Submit, in this order, each on the caller's thread.
  // Between them the caller charges for what it has learned; nothing calls back to it. Whoever
  // charges for nothing leaves Check out.

  // Before any work is done for the prompt: whether the request is valid, could fit, and would find
  // room in the queue now. Returns the prompt's tokens; of a text the fewest that it can have, of a
  // chat one. Errors: see request_validation.h; RESOURCE_EXHAUSTED (QUEUE_FULL, TOKEN_BUDGET),
  // DEADLINE_EXCEEDED, UNAVAILABLE (DRAINING, DEVICE_ERROR).
  virtual absl::StatusOr<int64_t> Check(const Request& request) const = 0;

  // Validates, makes tokens of the prompt, and checks them: there is at least one, all are in the
  // vocabulary, and the context has room. Errors: see request_validation.h; INVALID_ARGUMENT for a
  // prompt that becomes no token and for what no token stands for, with its offset; of a chat
  // ChatPrompts::Render (front/chat_prompts.h); RESOURCE_EXHAUSTED (TENANT_KV), DEADLINE_EXCEEDED.
  virtual absl::StatusOr<PreparedRequest> Prepare(Request request) const = 0;

  // Queues. On success the sink receives events, the last of them Finished or Failed; on error it
  // receives none. Errors: INVALID_ARGUMENT for a prompt without tokens; RESOURCE_EXHAUSTED
  // (QUEUE_FULL, TOKEN_BUDGET, KV_POOL_TOO_SMALL), UNAVAILABLE (DRAINING, DEVICE_ERROR). A deadline
  // that leaves no time for what will be served before it, for a slot where all are taken, and for
  // the part of the prompt that is not cached fails through the sink, before Started
  // (DEADLINE_TOO_SHORT).
  //
  // A request that has not started when its device is lost goes on on another one, with its sink
  // and its handle; where there is none, or none has room, it ends with UNAVAILABLE (DEVICE_ERROR).
  //
  // A full queue refuses the newest request of the tenant that has most in it for its weight: the
  // one that comes, or one that waits, which then fails through its sink, before Started.
  virtual absl::StatusOr<uint64_t> Submit(PreparedRequest request,
                                          std::shared_ptr<EventSink> sink) = 0;

  // Queues background work; see pass.h. On error the sink is not called. Errors: INVALID_ARGUMENT,
  // FAILED_PRECONDITION as of a request; RESOURCE_EXHAUSTED (QUEUE_FULL: kMaxPasses wait;
  // KV_POOL_TOO_SMALL), UNAVAILABLE (DRAINING, DEVICE_ERROR). Draining ends all passes at once.
  virtual absl::StatusOr<uint64_t> SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) = 0;
  static constexpr int32_t kMaxPasses = 1024;

  // The ids of `text`, UTF-8, with the beginning-of-text token in front, as a prompt would have
  // them. Any thread. INVALID_ARGUMENT for what is not UTF-8 or past limits().max_prompt_bytes, and
  // for what no token stands for, with its offset;
  // FAILED_PRECONDITION for a model that knows ids only.
  virtual absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const = 0;

  // What `ids` read as; `special_tokens`: those stand in the text. Any thread. INVALID_ARGUMENT for
  // ids past limits().max_context, outside of the vocabulary, or of more text than
  // limits().max_prompt_bytes; FAILED_PRECONDITION for a model that knows ids only.
  virtual absl::StatusOr<Detokenized> Detokenize(std::span<const int32_t> ids,
                                                 bool special_tokens) const = 0;

  // Ends a request or pass with CANCELLED before the next step; its blocks are free after it.
  // Unknown or finished handles are ignored.
  virtual void Cancel(uint64_t handle) = 0;

  // No request that is submitted from now on shares a prompt with one from before.
  virtual void ForgetPrefixes() {}

  // Refuses new requests from now on; returns when all others have ended. What is left at
  // `deadline` ends with UNAVAILABLE before the next step, for which this waits.
  virtual void Drain(Clock::time_point deadline) = 0;

  // Of all devices together, and of each one.
  virtual EngineSnapshot Snapshot() const = 0;
  virtual std::vector<EngineSnapshot> Devices() const { return {Snapshot()}; }
  // Of the tenants with requests now or within the last seconds, over all devices.
  virtual std::vector<TenantQueue> Tenants() const { return {}; }
};

}  // namespace eta
