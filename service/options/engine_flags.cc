// Flags of the model, of the engine that runs it, and of the requests that it accepts.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddModelFlags(CLI::App& app, EngineOptions& options, std::string& chat_template) {
  app.add_option("--model", options.model_dir,
                 "The model: a folder in Hugging Face's layout, or a GGUF file (of several the "
                 "first)")
      ->required()
      ->check(CLI::ExistingPath)
      ->group("Model");
  app.add_option("--model_name", options.model_name,
                 "Name of the model in requests and answers. Default: the folder's or file's name")
      ->group("Model");
  app.add_option("--chat_template", chat_template,
                 "File of a chat template (Jinja) that counts instead of the model's own. Default: "
                 "the model's")
      ->type_name("FILE")
      ->group("Model");
  app.add_option_function<std::vector<std::string>>(
         "--sha256",
         [&options](const std::vector<std::string>& pairs) {
           for (const std::string& pair : pairs) {
             const size_t equals = pair.find('=');
             const std::string digest =
                 equals == std::string::npos ? "" : absl::AsciiStrToLower(pair.substr(equals + 1));
             if (equals == 0 || digest.size() != 64 ||
                 digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
               throw CLI::ValidationError("must be FILE=HEX with 64 hexadecimal digits: " + pair);
             }
             options.sha256[pair.substr(0, equals)] = digest;
           }
         },
         "SHA-256 digest that a file of the model must have, as FILE=HEX; may be given once for "
         "each file. Default: no file is checked")
      ->group("Model");
  app.add_flag("--allow_nonfinite_weights", options.allow_nonfinite_weights,
               "Weights may hold NaN or infinity. By default such a model is refused")
      ->group("Model");
}

namespace {

constexpr int64_t kLeastCompileBytes = int64_t{64} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 50;

void AddComputeFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--backend", options.backend.name,
                 "Backend that runs the model: cpu; cuda on NVIDIA GPUs, where it was built; "
                 "reference, which is slow and judges the others")
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  app.add_option(
         "--device", options.devices,
         "GPUs to use, by index, as in 0,1. Each holds a copy of the model and a KV cache, and "
         "requests are spread over them")
      ->delimiter(',')
      ->default_str("0");
  AddChoice<DType>(
      app, "--compute", options.backend.compute,
      {{"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}, {"float32", DType::kFloat32}},
      "bfloat16",
      "Number format of matrix products on a GPU; float32 is exact and slow. A CPU computes in "
      "float32, but for --amx and beside weights in blocks of 4 to 8 bits");
  app.add_flag("--amx,!--no-amx", options.backend.amx,
               "On a CPU with AMX, matrix products and attention of prompts use its tiles: faster "
               "than AVX-512, exact to about 16 bits. Products of weights in blocks have the same "
               "bits with and without. A KV cache of float32 keeps attention in float32. Other "
               "CPUs take the best of AVX-512, AVX2 and SSSE3, or NEON, as answers do everywhere")
      ->default_str("true");
  app.add_option(
         "--threads", options.backend.num_threads,
         "Threads that compute. 0 means one for each CPU that the process may use, by its mask "
         "of CPUs and by the CPU quota of its control groups, rounded down")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  AddChoice<WeightFormat>(app, "--weights", options.weights,
                          {{"native", WeightFormat::kNative},
                           {"int8", WeightFormat::kInt8},
                           {"int4", WeightFormat::kInt4},
                           {"unpacked", WeightFormat::kUnpacked}},
                          "native",
                          "Number format of the weights in memory. native is the model's own: "
                          "float32, float16, bfloat16, or the blocks of 4 to 8 bits of a GGUF "
                          "file; on a GPU --compute's, and of blocks 4 or 8 bits. int8 and int4 "
                          "make blocks at load of what has more bits: about 1.06 and 0.63 bytes a "
                          "weight, at a loss of precision, small with int8. int4 keeps embedding, "
                          "head, key, value and down projections at 8 bits. unpacked makes "
                          "numbers of blocks: float32, on a GPU --compute's");
}

void AddCacheFlags(CLI::App& app, EngineOptions& options) {
  AddChoice<DType>(
      app, "--kv_dtype", options.kv_dtype,
      {{"float16", DType::kFloat16},
       {"bfloat16", DType::kBFloat16},
       {"float32", DType::kFloat32},
       {"float8_e4m3", DType::kFloat8E4M3}},
      "float16",
      "Number format of the KV cache. float32 doubles its bytes per token; float8_e4m3 halves "
      "them, loses some precision and is not for backend cpu");
  AddChoice<std::optional<IndexKind>>(
      app, "--index", options.index,
      {{"auto", std::nullopt}, {"moment", IndexKind::kMoment}, {"outlier", IndexKind::kOutlier}},
      "auto",
      "What the block index says of a block: moment is the paper's, outlier also tells of the key "
      "that stands out. A model without a gate has sparse attention with outlier only. auto is "
      "what the model's config.json says, else outlier for models without a gate");
  AddChoice<std::optional<DType>>(
      app, "--index_dtype", options.index_dtype,
      {{"auto", std::nullopt}, {"float16", DType::kFloat16}, {"int8", DType::kInt8}}, "auto",
      "Number format of the block index. Of kind moment int8 takes about half the bytes, selects a "
      "few more blocks and is not for backend cpu; an index of kind outlier is always int8. auto "
      "is float16, or int8 of kind outlier");
  AddBytes(app, "--kv_pool_bytes", options.kv_pool_bytes,
           "Memory of the KV cache on each device, in bytes, reserved at start. 0 means 1 GiB on a "
           "CPU and --kv_pool_fraction on a GPU");
  AddShare(app, "--kv_pool_fraction", options.kv_pool_fraction, 1.0,
           "Share of a GPU's memory, without what the model takes, that the KV cache gets where "
           "--kv_pool_bytes is 0");
}

}  // namespace

void AddEngineFlags(CLI::App& app, EngineOptions& options) {
  AddComputeFlags(app, options);
  AddCacheFlags(app, options);
  AddCount(app, "--max_running", options.max_running,
           "Largest number of requests in a batch, on each device");
  app.add_option(
         "--max_step_tokens", options.max_step_tokens,
         "Largest number of tokens in a step, at least --max_running: more read prompts faster and "
         "delay running streams longer. 0 means 256 on a CPU and 2048 on a GPU")
      ->check(CLI::Range(0, 16384))
      ->type_name("COUNT")
      ->capture_default_str();
  app.add_flag("--prefix_cache,!--no-prefix_cache", options.prefix_cache,
               "Requests whose prompts begin alike share the full blocks of that beginning")
      ->default_str("true");
  AddChoice<Speculation>(app, "--speculation", options.speculation,
                         {{"auto", Speculation::kAuto},
                          {"off", Speculation::kOff},
                          {"prompt", Speculation::kPrompt},
                          {"self", Speculation::kSelf}},
                         "auto",
                         "Where the tokens come from that are guessed ahead and verified together, "
                         "of requests that do not say: prompt, from what the request's text and "
                         "answer said before; self, from the model with sparser reads; auto from "
                         "either, where it makes the answer sooner and cannot change it; off, "
                         "nowhere");
  AddShare(app, "--shadow_rate", options.shadow_rate, 1.0,
           "Share of decode rows and layers that are also computed with full attention, to measure "
           "what reading less costs; takes at most 1 % of a step. 0 measures only requests with "
           "min_mass",
           /*least=*/0.0);
}

void AddFormatFlags(CLI::App& app, FormatOptions& options, FormatHelperOptions& helper) {
  AddDuration(
      app, "--format_compile_timeout", options.compile_timeout,
      "Time for which the format of an answer may be compiled. Longer ones are refused with "
      "DEADLINE_EXCEEDED");
  AddBytes(app, "--format_compile_bytes", helper.memory_bytes,
           "Memory that the compilation of a format may take, in bytes, in a process of its own. "
           "Larger ones are refused with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(kLeastCompileBytes, kMostBytes));
  AddCount(
      app, "--max_compiling", options.max_compiling,
      "Largest number of formats that are compiled at a time, each in a process of its own; of "
      "one tenant one less, where there are several");
  AddBytes(app, "--format_cache_bytes", options.cache_bytes,
           "Memory for compiled formats that are kept, in bytes. 0 keeps none")
      ->check(CLI::Range(int64_t{0}, kMostBytes));
}

void AddLimitFlags(CLI::App& app, Limits& limits, std::string& tenants) {
  AddCount(app, "--max_context", limits.max_context,
           "Largest number of tokens of a request, prompt and answer together. Past the trained "
           "length the rotary embedding is scaled, in steps. A layer with a shorter window sees "
           "that window alone");
  AddCount(app, "--max_output_tokens", limits.max_output_tokens,
           "Largest number of tokens of an answer: the largest max_tokens of a request");
  AddBytes(app, "--max_prompt_bytes", limits.max_prompt_bytes,
           "Largest size of a prompt's text, in bytes");
  AddCount(app, "--max_waiting_requests", limits.max_waiting_requests,
           "Largest number of requests in the queue. More are refused with RESOURCE_EXHAUSTED");
  AddCount(app, "--max_waiting_tokens", limits.max_waiting_tokens,
           "Largest number of prompt tokens in the queue. More are refused with "
           "RESOURCE_EXHAUSTED");
  app.add_option("--tenants", tenants,
                 "File (JSON) of the limits of each tenant; read again when it changes. Default: "
                 "none, and tenants have no limits of their own")
      ->type_name("FILE");
  AddDuration(app, "--default_deadline", limits.default_deadline,
              "Deadline of a Generate call that sets none");
  AddDuration(app, "--slow_reader_timeout", limits.max_congestion,
              "Time for which a client may leave its answer unread before the call is cut off");
}

}  // namespace eta
