#include "service/etactl/generate/request.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "service/etactl/connection.h"
#include "service/etactl/input.h"

namespace eta::ctl {
namespace {

absl::Status FillPrompt(const GenerateFlags& flags, v1::GenerateRequest* request) {
  const int sources = !flags.prompt.empty() + !flags.file.empty() + !flags.token_ids.empty();
  if (sources > 1) {
    return absl::InvalidArgumentError("give one of PROMPT, --file and --token_ids");
  }
  if (!flags.token_ids.empty()) {
    absl::StatusOr<std::vector<int32_t>> ids = ReadTokenIds("--token_ids", flags.token_ids);
    if (!ids.ok()) return ids.status();
    request->mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> text = ReadText("PROMPT", flags.prompt, flags.file);
  if (!text.ok()) return text.status();
  request->set_text(*std::move(text));
  return absl::OkStatus();
}

absl::Status FillSampling(const GenerateFlags& flags, v1::SamplingParams* sampling) {
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling->set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling->set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling->set_seed(*flags.seed);
  for (const std::string& entry : flags.logit_bias) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    int32_t id = 0;
    float bias = 0.0f;
    if (!absl::SimpleAtoi(pair.first, &id) || !absl::SimpleAtof(pair.second, &bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit_bias: not of the form ID=VALUE: ", entry));
    }
    v1::LogitBias* added = sampling->add_logit_bias();
    added->set_token_id(id);
    added->set_bias(bias);
  }
  return absl::OkStatus();
}

void FillStopping(const GenerateFlags& flags, v1::StoppingCriteria* stopping) {
  if (flags.max_tokens) stopping->set_max_tokens(*flags.max_tokens);
  if (flags.min_tokens) stopping->set_min_tokens(*flags.min_tokens);
  for (const std::string& text : flags.stop) stopping->add_stop_strings(text);
  for (const int32_t id : flags.stop_id) stopping->add_stop_token_ids(id);
  if (flags.ignore_eos) stopping->set_ignore_eos(true);
  if (flags.include_stop) stopping->set_include_stop(true);
}

absl::Status FillAttention(const GenerateFlags& flags, v1::Attention* attention) {
  constexpr char kProfilePrefix[] = "profile:";
  if (flags.attention == "full") {
    attention->mutable_full();
  } else if (flags.attention == "dynamic") {
    attention->mutable_dynamic();
  } else if (flags.attention.rfind(kProfilePrefix, 0) == 0) {
    attention->set_profile(flags.attention.substr(sizeof(kProfilePrefix) - 1));
  } else if (!flags.attention.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--attention: not full, dynamic or profile:NAME: ", flags.attention));
  }
  if (flags.offset) attention->set_offset(*flags.offset);
  if (flags.z) attention->set_z(*flags.z);
  if (flags.floor == "none") attention->set_floor(v1::FLOOR_NONE);
  if (flags.floor == "uniform") attention->set_floor(v1::FLOOR_UNIFORM);
  if (flags.pinned_blocks) attention->set_pinned_blocks(*flags.pinned_blocks);
  if (flags.sink_blocks) attention->set_sink_blocks(*flags.sink_blocks);
  if (flags.reads == "own") attention->set_reads(v1::READS_OWN);
  if (flags.reads == "shared") attention->set_reads(v1::READS_SHARED);
  if (flags.special_keys == "attend") attention->set_special_keys(v1::SPECIAL_KEYS_ATTEND);
  if (flags.special_keys == "temper") attention->set_special_keys(v1::SPECIAL_KEYS_TEMPER);
  if (flags.min_mass) attention->set_min_mass(*flags.min_mass);
  if (flags.begin == "as_asked") attention->set_begin(v1::BEGIN_AS_ASKED);
  if (flags.begin == "full") attention->set_begin(v1::BEGIN_FULL);
  if (flags.begin == "full_where_recent_mass_was_low") {
    attention->set_begin(v1::BEGIN_FULL_WHERE_RECENT_MASS_WAS_LOW);
  }
  if (flags.confirm) attention->set_confirm(*flags.confirm);
  if (flags.prefill == "full") attention->set_prefill(v1::PREFILL_FULL);
  if (flags.prefill == "sparse") attention->set_prefill(v1::PREFILL_SPARSE);
  return absl::OkStatus();
}

void AddPromptOptions(CLI::App* command, GenerateFlags* flags) {
  command->add_option("PROMPT", flags->prompt,
                      "The prompt; '-', or none when stdin is no terminal: read it from stdin, "
                      "without the line end that closes it");
  command->add_option("--file", flags->file,
                      "Read the prompt from this file, '-' for stdin, every byte of it");
  command->add_option("--token_ids", flags->token_ids,
                      "Prompt as token ids: a list such as 1,52,7, or a file that holds one");
  command->add_flag("--parse_special", flags->parse_special,
                    "Special tokens that the prompt spells, such as </s>, are those tokens");
  command->add_option("--request_id", flags->request_id,
                      "Your name for this call, echoed in the answer");
}

void AddCallOptions(CLI::App* command, GenerateFlags* flags) {
  command->add_option("--model", flags->model, "Refuse if the server serves another model");
  command->add_option("--priority", flags->priority, "low, normal or high; default normal")
      ->check(CLI::IsMember({"low", "normal", "high"}));
  AddDeadlineOption(command, &flags->deadline_seconds, "120");
}

void AddSamplingOptions(CLI::App* command, GenerateFlags* flags) {
  command->add_option("--temperature", flags->temperature, "0 to 2, 0 = greedy; default 1")
      ->group("Sampling");
  command->add_option("--top_k", flags->top_k, "Only the K most probable tokens; default 0 = off")
      ->group("Sampling");
  command->add_option("--top_p", flags->top_p, "Fewest tokens that reach this sum; default 1")
      ->group("Sampling");
  command->add_option("--min_p", flags->min_p, "Share of the best token's probability; default 0")
      ->group("Sampling");
  command->add_option("--repetition_penalty", flags->repetition_penalty, "0 to 10; default 1")
      ->group("Sampling");
  command->add_option("--presence_penalty", flags->presence_penalty, "-2 to 2; default 0")
      ->group("Sampling");
  command->add_option("--frequency_penalty", flags->frequency_penalty, "-2 to 2; default 0")
      ->group("Sampling");
  command->add_option("--logit_bias", flags->logit_bias, "ID=VALUE, -100 to 100; may be repeated")
      ->allow_extra_args(false)
      ->group("Sampling");
  command->add_option("--seed", flags->seed, "Default: drawn by the server, and shown")
      ->group("Sampling");
}

void AddStoppingOptions(CLI::App* command, GenerateFlags* flags) {
  command
      ->add_option(
          "--max_tokens", flags->max_tokens,
          "Longest answer; default 256, or what the prompt leaves of the context if that is less")
      ->group("Stopping");
  command->add_option("--min_tokens", flags->min_tokens, "No stop before this many; default 0")
      ->group("Stopping");
  command->add_option("--stop", flags->stop, "End before this string; up to 4 times")
      ->allow_extra_args(false)
      ->group("Stopping");
  command->add_option("--stop_id", flags->stop_id, "End with this token; up to 16 times")
      ->allow_extra_args(false)
      ->group("Stopping");
  command->add_flag("--ignore_eos", flags->ignore_eos, "Go on after end-of-text")
      ->group("Stopping");
  command
      ->add_flag("--include_stop", flags->include_stop,
                 "Keep the stop string in the text, with --special_tokens the stop token too")
      ->group("Stopping");
}

void AddAttentionOptions(CLI::App* command, GenerateFlags* flags) {
  command
      ->add_option("--attention", flags->attention,
                   "full, dynamic or profile:NAME, NAME@VERSION, NAME@ALIAS; default: the model's")
      ->group("Attention");
  command->add_option("--offset", flags->offset, "Lowers every threshold by this; default 0")
      ->group("Attention");
  command->add_option("--z", flags->z, "Width of the block bound; default 1.5, without a floor 2")
      ->group("Attention");
  command
      ->add_option("--floor", flags->floor,
                   "What pruned keys weigh: none or uniform; default uniform if the model is gated")
      ->check(CLI::IsMember({"none", "uniform"}))
      ->group("Attention");
  command
      ->add_option("--pinned_blocks", flags->pinned_blocks,
                   "Newest full blocks that are always read; default 2")
      ->group("Attention");
  command
      ->add_option("--sink_blocks", flags->sink_blocks,
                   "First full blocks that are always read; default the model's")
      ->group("Attention");
  command
      ->add_option("--reads", flags->reads,
                   "Which of the blocks read for its group a head sees: own or shared; default the "
                   "model's")
      ->check(CLI::IsMember({"own", "shared"}))
      ->group("Attention");
  command
      ->add_option("--confirm", flags->confirm,
                   "Read values of a block only if its scores reach the threshold; default the "
                   "profile's, else false")
      ->type_name("BOOL")
      ->group("Attention");
  command
      ->add_option("--prefill", flags->prefill,
                   "What tokens of the prompt attend to: full, or sparse for the blocks that they "
                   "admit; default the profile's, else full")
      ->check(CLI::IsMember({"full", "sparse"}))
      ->group("Attention");
  command
      ->add_option("--special_keys", flags->special_keys,
                   "Control tokens: attend, or temper to weigh exp(0); default the model's")
      ->check(CLI::IsMember({"attend", "temper"}))
      ->group("Attention");
  command
      ->add_option("--min_mass", flags->min_mass,
                   "Go on with full attention if less of its softmax is kept, above 0 to 1")
      ->group("Attention");
  command
      ->add_option(
          "--begin", flags->begin,
          "With min_mass: as_asked, full, or full_where_recent_mass_was_low, which depends "
          "on earlier requests; default as_asked")
      ->check(CLI::IsMember({"as_asked", "full", "full_where_recent_mass_was_low"}))
      ->group("Attention");
  command->add_flag("--layers", flags->layers, "Show the densities of every layer")
      ->group("Attention");
}

void AddOutputOptions(CLI::App* command, GenerateFlags* flags) {
  CLI::Option* json =
      command->add_flag("--json", flags->json, "Every event as one JSON object per line")
          ->group("Output");
  command->add_flag("--quiet", flags->quiet, "Nothing but the answer, byte for byte, and errors")
      ->group("Output");
  command
      ->add_option("--logprobs", flags->logprobs,
                   "Log-probabilities of the answer with N alternatives, 0 to 20")
      ->needs(json)
      ->group("Output");
  command
      ->add_option("--prompt_logprobs", flags->prompt_logprobs,
                   "Log-probabilities of the prompt with N alternatives, 0 to 20")
      ->needs(json)
      ->group("Output");
  command
      ->add_flag("--special_tokens", flags->special_tokens,
                 "Show special tokens of the answer, as the vocabulary spells them")
      ->group("Output");
  command->add_flag("--output_ids", flags->output_ids, "Token ids of the answer")
      ->needs(json)
      ->group("Output");
}

}  // namespace

void AddAnswerOptions(CLI::App* command, GenerateFlags* flags) {
  AddCallOptions(command, flags);
  AddSamplingOptions(command, flags);
  AddStoppingOptions(command, flags);
  AddAttentionOptions(command, flags);
  AddOutputOptions(command, flags);
}

CLI::App* AddGenerateCommand(CLI::App& app, GenerateFlags* flags) {
  CLI::App* command = app.add_subcommand("generate", "Generate text from a prompt");
  AddPromptOptions(command, flags);
  AddAnswerOptions(command, flags);
  return command;
}

absl::Status FillAnswer(const GenerateFlags& flags, v1::GenerateRequest* request) {
  if (flags.model) request->set_model(*flags.model);
  RETURN_IF_ERROR(FillSampling(flags, request->mutable_sampling()));
  FillStopping(flags, request->mutable_stopping());
  RETURN_IF_ERROR(FillAttention(flags, request->mutable_attention()));
  v1::OutputOptions* output = request->mutable_output();
  if (flags.logprobs) output->set_logprobs(*flags.logprobs);
  if (flags.prompt_logprobs) output->set_prompt_logprobs(*flags.prompt_logprobs);
  if (flags.output_ids) output->set_token_ids(true);
  if (flags.special_tokens) output->set_special_tokens(true);
  if (flags.layers) output->set_layer_statistics(true);
  if (flags.priority == "low") request->set_priority(v1::PRIORITY_LOW);
  if (flags.priority == "normal") request->set_priority(v1::PRIORITY_NORMAL);
  if (flags.priority == "high") request->set_priority(v1::PRIORITY_HIGH);
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> MakeGenerateRequest(const GenerateFlags& flags) {
  v1::GenerateRequest request;
  RETURN_IF_ERROR(FillPrompt(flags, &request));
  if (flags.parse_special) request.set_parse_special(true);
  if (flags.request_id) request.set_request_id(*flags.request_id);
  RETURN_IF_ERROR(FillAnswer(flags, &request));
  return request;
}

}  // namespace eta::ctl
