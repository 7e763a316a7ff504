#include "service/etactl/generate/request.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "service/etactl/attention_options.h"
#include "service/etactl/connection.h"
#include "service/etactl/input.h"
#include "service/wire/attention_message.h"

namespace eta::ctl {
namespace {

absl::Status FillPrompt(const GenerateFlags& flags, v1::GenerateRequest* request) {
  const int sources = !flags.prompt.empty() + !flags.file.empty() + !flags.token_ids.empty();
  if (sources > 1) {
    return absl::InvalidArgumentError("give one of PROMPT, --file and --token_ids");
  }
  if (!flags.token_ids.empty()) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadTokenIds("--token_ids", flags.token_ids));
    request->mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::string text, ReadText("PROMPT", flags.prompt, flags.file));
  request->set_text(std::move(text));
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

absl::Status FillFormat(const GenerateFlags& flags, v1::GenerateRequest* request) {
  const int formats = !flags.json_schema.empty() + !flags.grammar.empty() + flags.json_object +
                      flags.regex.has_value() + !flags.choices.empty();
  if (formats == 0) return absl::OkStatus();
  if (formats > 1) {
    return absl::InvalidArgumentError(
        "give one of --json_schema, --json_object, --regex, --grammar and --choice");
  }
  v1::AnswerFormat* format = request->mutable_format();
  if (!flags.json_schema.empty()) {
    ASSIGN_OR_RETURN(*format->mutable_json_schema(), ReadAll(flags.json_schema));
  } else if (!flags.grammar.empty()) {
    ASSIGN_OR_RETURN(*format->mutable_grammar(), ReadAll(flags.grammar));
  } else if (flags.json_object) {
    format->mutable_json_object();
  } else if (flags.regex) {
    format->set_regex(*flags.regex);
  }
  for (const std::string& choice : flags.choices) format->mutable_choice()->add_choices(choice);
  return absl::OkStatus();
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
  WriteSettings(flags.settings, *attention);
  if (flags.begin == "as_asked") attention->set_begin(v1::BEGIN_AS_ASKED);
  if (flags.begin == "full") attention->set_begin(v1::BEGIN_FULL);
  if (flags.begin == "full_where_recent_mass_was_low") {
    attention->set_begin(v1::BEGIN_FULL_WHERE_RECENT_MASS_WAS_LOW);
  }
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
  command
      ->add_option("--speculation", flags->speculation,
                   "Where tokens are guessed ahead from: off, prompt (its text and the answer's), "
                   "self (sparser reads) or auto; default: the server's")
      ->check(CLI::IsMember({"off", "prompt", "self", "auto"}));
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

void AddFormatOptions(CLI::App* command, GenerateFlags* flags) {
  command
      ->add_option("--json_schema", flags->json_schema,
                   "A JSON value that the JSON schema in this file accepts; '-' for stdin")
      ->group("Format of the answer");
  command->add_flag("--json_object", flags->json_object, "Any JSON object")
      ->group("Format of the answer");
  command
      ->add_option("--regex", flags->regex,
                   "A text that this regular expression matches from end to end")
      ->group("Format of the answer");
  command
      ->add_option("--grammar", flags->grammar,
                   "A text of the grammar in this file, EBNF with a rule root; '-' for stdin")
      ->group("Format of the answer");
  command->add_option("--choice", flags->choices, "One of some texts, each by a --choice")
      ->allow_extra_args(false)
      ->group("Format of the answer");
}

void AddAttentionOptions(CLI::App* command, GenerateFlags* flags) {
  command
      ->add_option("--attention", flags->attention,
                   "full, dynamic or profile:NAME, NAME@VERSION, NAME@ALIAS; default: the model's")
      ->group("Attention");
  AddAttentionSettings(command, "Attention", /*of_profiles=*/false, &flags->settings);
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
  AddFormatOptions(command, flags);
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
  RETURN_IF_ERROR(FillFormat(flags, request));
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
  if (flags.speculation == "off") request->set_speculation(v1::SPECULATION_OFF);
  if (flags.speculation == "prompt") request->set_speculation(v1::SPECULATION_PROMPT);
  if (flags.speculation == "self") request->set_speculation(v1::SPECULATION_SELF);
  if (flags.speculation == "auto") request->set_speculation(v1::SPECULATION_AUTO);
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
