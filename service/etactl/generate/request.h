// The options of `etactl generate`, most of which are those of `etactl chat` too, and the requests
// that they make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/attention_settings.h"
#include "eta/v1/generate.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

// The command line. Absent flags stay absent in the request, since the server has the defaults.
struct GenerateFlags {
  std::string prompt;
  std::string file;
  std::string token_ids;  // "1,2,3", or the name of a file that holds such a list
  bool parse_special = false;
  std::optional<std::string> model;

  std::optional<float> temperature, top_p, min_p;
  std::optional<int32_t> top_k;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::vector<std::string> logit_bias;  // "ID=V"
  std::optional<uint64_t> seed;

  std::optional<int32_t> max_tokens, min_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_id;
  bool ignore_eos = false;
  bool include_stop = false;

  // The format of the answer, at most one of these.
  std::string json_schema, grammar;  // files; empty: none
  bool json_object = false;
  std::optional<std::string> regex;
  std::vector<std::string> choices;

  std::optional<int32_t> logprobs, prompt_logprobs;
  bool output_ids = false;
  bool special_tokens = false;
  bool layers = false;

  std::string attention;  // "full", "dynamic", "profile:NAME"; empty: the model's default
  AttentionSettings settings;
  std::string begin;

  std::optional<std::string> request_id;
  std::string priority;     // "low", "normal", "high"; empty: normal
  std::string speculation;  // "auto", "off", "prompt", "self"; empty: the server's default
  std::optional<double> deadline_seconds;

  bool json = false;
  bool quiet = false;
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddGenerateCommand(CLI::App& app, GenerateFlags* flags);

// Adds the options that say how to answer, whatever the prompt is.
void AddAnswerOptions(CLI::App* command, GenerateFlags* flags);

// Fills in all but the prompt. Errors as of MakeGenerateRequest.
absl::Status FillAnswer(const GenerateFlags& flags, v1::GenerateRequest* request);

// Reads the prompt and the format that the flags name. INVALID_ARGUMENT, with a sentence for the
// user, if it cannot be read or a value is malformed. Values out of range are left to the server to
// refuse.
absl::StatusOr<v1::GenerateRequest> MakeGenerateRequest(const GenerateFlags& flags);

}  // namespace eta::ctl
