// Flags of the model, of the engine that runs it and of the requests that it takes.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "service/flag_groups.h"
#include "service/flag_kinds.h"

namespace eta {

void AddModelFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--model", options.model_dir,
                 "Folder with config.json, model.safetensors and tokenizer.model")
      ->required()
      ->check(CLI::ExistingDirectory)
      ->group("Model");
  app.add_option("--model_name", options.model_name,
                 "Name that requests and answers use; default: the folder's name")
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
         "Digest that a file of the model must have, as FILE=HEX; may be given for several files")
      ->group("Model");
  app.add_flag("--allow_nonfinite_weights", options.allow_nonfinite_weights,
               "Load a model whose weights hold NaN or infinity")
      ->group("Model");
}

void AddEngineFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--backend", options.backend.name, "Backend that computes")
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  app.add_option(
         "--device", options.devices,
         "GPUs to use, by index, as in 0,1: each gets a copy of the model and a cache of its "
         "own, and requests are shared out among them")
      ->delimiter(',')
      ->default_str("0");
  AddChoice<DType>(
      app, "--compute", options.backend.compute,
      {{"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}, {"float32", DType::kFloat32}},
      "bfloat16",
      "Type that a GPU computes products in; float32 is exact and slow. The CPU always computes in "
      "float32");
  app.add_option("--threads", options.backend.num_threads,
                 "Threads that compute; 0: one per core that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  AddChoice<WeightFormat>(
      app, "--weights", options.weights,
      {{"native", WeightFormat::kNative}, {"int8", WeightFormat::kInt8}}, "native",
      "Format of weights in memory: as in the checkpoint, or 8-bit integers with one scale per "
      "output (half the bytes, a small loss of precision)");
  AddChoice<DType>(
      app, "--kv_dtype", options.kv_dtype,
      {{"float16", DType::kFloat16},
       {"bfloat16", DType::kBFloat16},
       {"float32", DType::kFloat32},
       {"float8_e4m3", DType::kFloat8E4M3}},
      "float16",
      "Format of the KV cache; float32 doubles its bytes per token, float8_e4m3 halves them at a "
      "loss of precision (not on the CPU)");
  AddChoice<DType>(
      app, "--index_dtype", options.index_dtype,
      {{"float16", DType::kFloat16}, {"int8", DType::kInt8}}, "float16",
      "Format of block records; int8 halves the bytes that screening reads and selects "
      "a little more (not on the CPU)");
  AddBytes(app, "--kv_pool_bytes", options.kv_pool_bytes,
           "Memory of the KV cache, reserved at start on each device; bounds the tokens in flight. "
           "0: 1 GiB, on a GPU --kv_pool_fraction");
  AddShare(app, "--kv_pool_fraction", options.kv_pool_fraction, 1.0,
           "Without --kv_pool_bytes: share of a GPU's memory, as far as the model left it free, "
           "that becomes the KV cache");
  AddCount(app, "--max_running", options.max_running, "Requests in one batch, on each device");
  app.add_option(
         "--max_step_tokens", options.max_step_tokens,
         "Tokens of one step: more prefills faster and holds running streams up for longer; "
         "at least --max_running. 0: 256, on a GPU 2048")
      ->check(CLI::Range(0, 16384))
      ->type_name("COUNT")
      ->capture_default_str();
  app.add_flag("--prefix_cache,!--no-prefix_cache", options.prefix_cache,
               "Share full prompt blocks between requests")
      ->default_str("true");
}

void AddLimitFlags(CLI::App& app, Limits& limits, std::string& tenants) {
  AddCount(app, "--max_context", limits.max_context,
           "Tokens of prompt and answer together; past the trained length the rotary embedding is "
           "scaled");
  AddCount(app, "--max_output_tokens", limits.max_output_tokens, "Largest max_tokens of a request");
  AddBytes(app, "--max_prompt_bytes", limits.max_prompt_bytes, "Longest prompt text");
  AddCount(app, "--max_waiting_requests", limits.max_waiting_requests,
           "Requests that may wait; more are refused with RESOURCE_EXHAUSTED");
  AddCount(app, "--max_waiting_tokens", limits.max_waiting_tokens,
           "Prompt tokens that may wait; more are refused with RESOURCE_EXHAUSTED");
  app.add_option(
         "--tenants", tenants,
         "File of what each tenant may use: calls at a time, token budget, weight, KV cache, "
         "calibrations, stored profiles (JSON). Read again when it changes")
      ->type_name("FILE");
  AddDuration(app, "--default_deadline", limits.default_deadline,
              "Deadline of Generate calls that set none");
  AddDuration(app, "--slow_reader_timeout", limits.max_congestion,
              "A client that reads more slowly than this is cut off");
}

}  // namespace eta
