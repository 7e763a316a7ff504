#include "service/vllm/convert_vllm.h"

#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/request/answers/format_validation.h"
#include "engine/request/request_validation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/text_proto.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int32_t kMost = 4096;

vllm_pb::GenerateRequest MessageOf(const std::string& text) {
  return FromText<vllm_pb::GenerateRequest>(text);
}

absl::StatusOr<VllmRequest> Converted(const std::string& text) {
  return ToRequest(MessageOf(text), Limits(), kMost);
}

EngineInfo SmallModel() {
  EngineInfo info{.kv_dtype = DType::kFloat16};
  info.config.vocab_size = 100;
  return info;
}

// Why the engine would refuse it, in the words of that API.
absl::Status RefusalOf(const std::string& text) {
  auto converted = Converted(text);
  if (!converted.ok()) return converted.status();
  converted->request.id = "r";
  return InVllmFields(ValidateRequest(converted->request, SmallModel(), Limits()),
                      converted->request.sampling);
}

TEST(VllmRequest, ZeroAndAbsentMeanWhatTheReferenceServicerMeans) {
  const auto converted = Converted("tokenized { input_ids: 7 }").value();
  EXPECT_EQ(converted.answers, 1);
  EXPECT_FALSE(converted.stream);
  const Request& request = converted.request;
  EXPECT_THAT(std::get<std::vector<int32_t>>(request.prompt), ElementsAre(7));
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.0f);
  EXPECT_FALSE(request.sampling.seed.has_value());
  EXPECT_TRUE(request.stopping.fit_max_tokens);
  EXPECT_EQ(request.stopping.max_tokens, kMost);
  EXPECT_FALSE(request.output.logprobs.has_value());
  EXPECT_FALSE(request.keep_last.has_value());
  EXPECT_FALSE(request.attention.mode.has_value());
  EXPECT_TRUE(request.output.ids);
  EXPECT_TRUE(request.output.end_id);
  EXPECT_FALSE(request.output.text);
  EXPECT_TRUE(request.output.special_tokens) << "stop strings see what is not skipped";
}

TEST(VllmRequest, PresentValuesAreTaken) {
  const auto converted = Converted(R"(
    stream: true text: "<s>Once" sampling_params {
      temperature: 0 top_p: 0.5 top_k: 4294967295 min_p: 0.1 frequency_penalty: 1
      presence_penalty: -1 repetition_penalty: 1.1 max_tokens: 9 min_tokens: 2 stop: "x"
      stop_token_ids: 5 skip_special_tokens: true ignore_eos: true n: 2 logprobs: 0
      prompt_logprobs: 3 seed: 7 logit_bias { key: 8 value: 1 } logit_bias { key: 3 value: -2 } })")
                             .value();
  EXPECT_TRUE(converted.stream);
  EXPECT_EQ(converted.answers, 2);
  const Request& request = converted.request;
  EXPECT_EQ(std::get<std::string>(request.prompt), "<s>Once");
  EXPECT_TRUE(request.parse_special);
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(request.sampling.seed, 7u);
  ASSERT_EQ(request.sampling.bias.size(), 2u);
  EXPECT_EQ(request.sampling.bias[0].id, 3);
  EXPECT_EQ(request.sampling.bias[1].bias, 1.0f);
  EXPECT_FALSE(request.stopping.fit_max_tokens);
  EXPECT_EQ(request.stopping.max_tokens, 9);
  EXPECT_EQ(request.stopping.min_tokens, 2);
  EXPECT_THAT(request.stopping.stop_strings, ElementsAre("x"));
  EXPECT_THAT(request.stopping.stop_ids, ElementsAre(5));
  EXPECT_TRUE(request.stopping.ignore_eos);
  EXPECT_EQ(request.output.logprobs, 0);
  EXPECT_EQ(request.output.prompt_logprobs, 3);
  EXPECT_FALSE(request.output.special_tokens);
}

// Requests as SMG 1.13.0 sends them (tests/gateway), with other ids and names.
TEST(VllmRequest, WhatAGatewaySendsIsTaken) {
  const std::string always =
      "request_id: \"chatcmpl-644dWRp7xnu9ERE2LZDtr7em-01a21eab-ce81-770e-9385-b81cec804e24\" "
      "tokenized { input_ids: 1 input_ids: 96 } sampling_params { repetition_penalty: 1 "
      "skip_special_tokens: true spaces_between_special_tokens: true ";
  EXPECT_EQ(RefusalOf(always + "top_p: 1 n: 1 }"), absl::OkStatus());
  EXPECT_EQ(RefusalOf(always + "top_p: 1 n: 1 temperature: 0 max_tokens: 8 logprobs: 3 } "
                               "stream: true"),
            absl::OkStatus());
  EXPECT_EQ(RefusalOf(always + "top_p: 1 n: 1 top_k: 5 min_p: 0.1 frequency_penalty: 0.2 "
                               "presence_penalty: 0.5 max_tokens: 2 min_tokens: 1 "
                               "stop_token_ids: 3 ignore_eos: true logprobs: 2 }"),
            absl::OkStatus());
  const auto several =
      Converted(always +
                "temperature: 0.7 top_p: 0.9 max_tokens: 4 stop: \" there\" n: 2 seed: 7 }")
          .value();
  EXPECT_EQ(several.answers, 2);
  EXPECT_EQ(several.request.sampling.seed, 7u);
  EXPECT_THAT(several.request.stopping.stop_strings, ElementsAre(" there"));
  EXPECT_FALSE(several.request.output.special_tokens);
  const auto schema =
      Converted(always + "top_p: 1 n: 1 json_schema: \"{\\\"type\\\":\\\"object\\\"}\" }").value();
  EXPECT_EQ(schema.format->kind, AnswerFormatKind::kJsonSchema);
  EXPECT_EQ(schema.format->source, R"({"type":"object"})");
  EXPECT_EQ(RefusalOf("request_id: \"cmpl-8zhZ3vAajrfr9M4UiTopxMUk\" tokenized {} "
                      "sampling_params { top_p: 1 n: 1 max_tokens: 2 }")
                .message(),
            "tokenized.input_ids: must not be empty");
}

TEST(VllmRequest, ASeedOfMinusOneIsDrawn) {
  EXPECT_FALSE(Converted("text: 'x' sampling_params { seed: -1 }")->request.sampling.seed);
  EXPECT_EQ(Converted("text: 'x' sampling_params { seed: -2 }")->request.sampling.seed,
            std::numeric_limits<uint64_t>::max() - 1);
  EXPECT_EQ(Converted("text: 'x' sampling_params { seed: 0 }")->request.sampling.seed, 0u);
}

// bad input: Gateways | `truncate_prompt_tokens` of 0 or under -1 | INVALID_ARGUMENT, the field
//   named
TEST(VllmRequest, TruncationKeepsTheEnd) {
  EXPECT_EQ(Converted("text: 'x' sampling_params { truncate_prompt_tokens: 5 }")->request.keep_last,
            5);
  const auto filled =
      Converted("text: 'x' sampling_params { truncate_prompt_tokens: -1 max_tokens: 100 }");
  EXPECT_EQ(filled->request.keep_last, Limits().max_context - 100);
  for (const std::string bad : {"0", "-2"}) {
    EXPECT_EQ(GetErrorDetail(
                  RefusalOf("text: 'x' sampling_params { truncate_prompt_tokens: " + bad + " }"))
                  .field,
              "sampling_params.truncate_prompt_tokens");
  }
}

TEST(VllmRequest, ConstraintsAreFormats) {
  const auto format_of = [](const std::string& constraint) {
    return Converted("text: 'x' sampling_params { " + constraint + " }")->format;
  };
  EXPECT_EQ(format_of("regex: 'a+'"),
            (AnswerFormat{.kind = AnswerFormatKind::kRegex, .source = "a+"}));
  EXPECT_EQ(format_of("grammar: 'root ::= \"a\"'"),
            (AnswerFormat{.kind = AnswerFormatKind::kGrammar, .source = "root ::= \"a\""}));
  EXPECT_EQ(format_of("structural_tag: '{}'"),
            (AnswerFormat{.kind = AnswerFormatKind::kStructuralTag, .source = "{}"}));
  EXPECT_EQ(format_of("json_object: true"), (AnswerFormat{.kind = AnswerFormatKind::kJsonObject}));
  EXPECT_EQ(format_of("json_object: false"), std::nullopt);
  EXPECT_EQ(format_of("choice { choices: 'yes' choices: 'no' }"),
            (AnswerFormat{.kind = AnswerFormatKind::kChoice, .choices = {"yes", "no"}}));
  EXPECT_EQ(format_of(""), std::nullopt);
}

// bad input: Gateways | a schema, regex, grammar, structural tag or choices outside their limits |
//   INVALID_ARGUMENT, the field named as that API spells it
TEST(VllmRequest, BadConstraintsAreNamedAsThatApiSpellsThem) {
  const std::pair<AnswerFormat, const char*> cases[] = {
      {{.kind = AnswerFormatKind::kJsonSchema}, "sampling_params.json_schema"},
      {{.kind = AnswerFormatKind::kRegex, .source = "\xff"}, "sampling_params.regex"},
      {{.kind = AnswerFormatKind::kChoice, .choices = {"a", "a"}},
       "sampling_params.choice.choices[1]"},
  };
  for (const auto& [format, field] : cases) {
    const absl::Status status = InVllmFields(ValidateFormat(format), SamplingOptions());
    EXPECT_EQ(GetErrorDetail(status).field, field);
    EXPECT_THAT(std::string(status.message()), StartsWith(std::string(field) + ": "));
  }
  EXPECT_EQ(GetErrorDetail(InVllmFields(InvalidField("format", "x"), SamplingOptions())).field,
            "sampling_params");
}

// bad input: Gateways | media; KV transfer; a rank; more than 16 answers; no choices; a
//   `request_id` that is none | INVALID_ARGUMENT, the field named
TEST(VllmRequest, WhatIsNotDoneIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "input"},
      {"text: 'x' mm_inputs {}", "mm_inputs"},
      {"text: 'x' extra_mm_inputs {}", "extra_mm_inputs"},
      {"text: 'x' media_refs {}", "media_refs"},
      {"text: 'x' kv_transfer_params {}", "kv_transfer_params"},
      {"text: 'x' kv_transfer_params_json: ''", "kv_transfer_params_json"},
      {"text: 'x' data_parallel_rank: 1", "data_parallel_rank"},
      {"text: 'x' sampling_params { choice {} }", "sampling_params.choice.choices"},
      {"text: 'x' sampling_params { n: 17 }", "sampling_params.n"},
      {"text: 'x' sampling_params { n: 4294967295 }", "sampling_params.n"},
      {"text: 'x' request_id: 'a b'", "request_id"},
  };
  for (const auto& [text, field] : cases) {
    const absl::Status status = Converted(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_EQ(GetErrorDetail(status).field, field) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith(std::string(field) + ": "));
  }
  EXPECT_TRUE(Converted("text: 'x' data_parallel_rank: 0 sampling_params { n: 16 }").ok());
  EXPECT_FALSE(Converted("text: 'x' request_id: '" + std::string(257, 'a') + "'").ok());
  EXPECT_TRUE(Converted("text: 'x' request_id: '" + std::string(256, 'a') + "'").ok());
}

// bad input: Gateways | no ids, ids outside of the vocabulary, any value outside its limits |
//   INVALID_ARGUMENT, the field named as that API spells it
TEST(VllmRequest, BadValuesAreNamedAsThatApiSpellsThem) {
  const std::string ids = "tokenized { input_ids: 1 } sampling_params ";
  const std::pair<std::string, std::string> cases[] = {
      {"tokenized {}", "tokenized.input_ids"},
      {"tokenized { input_ids: 1 input_ids: 100 }", "tokenized.input_ids[1]"},
      {"tokenized { input_ids: 4294967295 }", "tokenized.input_ids[0]"},
      {"text: ''", "text"},
      {ids + "{ temperature: 3 }", "sampling_params.temperature"},
      {ids + "{ top_p: 1.5 }", "sampling_params.top_p"},
      {ids + "{ max_tokens: 0 }", "sampling_params.max_tokens"},
      {ids + "{ max_tokens: 4294967295 }", "sampling_params.max_tokens"},
      {ids + "{ min_tokens: 5000 }", "sampling_params.min_tokens"},
      {ids + "{ stop: '' }", "sampling_params.stop[0]"},
      {ids + "{ stop_token_ids: 200 }", "sampling_params.stop_token_ids[0]"},
      {ids + "{ logprobs: -1 }", "sampling_params.logprobs"},
      {ids + "{ prompt_logprobs: 21 }", "sampling_params.prompt_logprobs"},
      {ids + "{ logit_bias { key: 3 } logit_bias { key: 400 value: 1 } }",
       "sampling_params.logit_bias[400]"},
      {ids + "{ logit_bias { key: 3 value: 101 } }", "sampling_params.logit_bias[3]"},
  };
  for (const auto& [text, field] : cases) {
    const absl::Status status = RefusalOf(text);
    EXPECT_EQ(GetErrorDetail(status).field, field) << text << " " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(field + ": ")) << text;
  }
  EXPECT_TRUE(RefusalOf(ids + "{ max_tokens: 4 }").ok());
}

TEST(VllmRequest, OtherErrorsStayAsTheyAre) {
  const SamplingOptions request;
  EXPECT_TRUE(InVllmFields(absl::OkStatus(), request).ok());
  EXPECT_EQ(InVllmFields(absl::UnavailableError("x"), request), absl::UnavailableError("x"));
  const absl::Status attention = InVllmFields(InvalidField("attention.profile", "bad"), request);
  EXPECT_EQ(attention.message(), "x-eta-attention: bad");
}

TEST(VllmAnswer, ADeltaBringsIdsAndLogarithms) {
  const DeltaEvent event = {.text = "ignored",
                            .ids = {4, 5},
                            .logprobs = {{4, -0.5f, {{4, -0.5f}, {9, -1.0f}}}, {5, -2.0f, {}}}};
  google::protobuf::RepeatedField<uint32_t> ids;
  vllm_pb::OutputLogProbs logprobs;
  AppendTokens(event, {.logprobs = 2}, ids, &logprobs);
  EXPECT_THAT(ids, ElementsAre(4, 5));
  EXPECT_THAT(logprobs.token_ids(), ElementsAre(4, 5));
  EXPECT_THAT(logprobs.token_logprobs(), ElementsAre(-0.5f, -2.0f));
  ASSERT_EQ(logprobs.top_logprobs_size(), 2);
  EXPECT_THAT(logprobs.top_logprobs(0).token_ids(), ElementsAre(4, 9));
  vllm_pb::OutputLogProbs without_tops;
  AppendTokens(event, {.logprobs = 0}, ids, &without_tops);
  EXPECT_EQ(without_tops.top_logprobs_size(), 0);
  EXPECT_EQ(without_tops.token_ids_size(), 2);
}

TEST(VllmAnswer, ThePromptsFirstTokenHasNoLogarithm) {
  vllm_pb::InputLogProbs logprobs;
  const std::vector<TokenDetail> first = {{4, -0.5f, {{4, -0.5f}}}};
  const std::vector<TokenDetail> second = {{6, -1.5f, {{8, -0.5f}}}};
  AppendPrompt(first, {.prompt_logprobs = 1}, /*first_id=*/1, logprobs);
  AppendPrompt(second, {.prompt_logprobs = 1}, /*first_id=*/1, logprobs);
  EXPECT_THAT(logprobs.token_ids(), ElementsAre(1, 4, 6));
  EXPECT_FALSE(logprobs.token_logprobs(0).has_value());
  EXPECT_EQ(logprobs.token_logprobs(2).value(), -1.5f);
  EXPECT_EQ(logprobs.top_logprobs_size(), 3);
  EXPECT_EQ(logprobs.top_logprobs(0).values_size(), 0);
}

TEST(VllmAnswer, TheEndSaysStopOrLengthAndWhatMatched) {
  FinishedEvent event = {.prompt_tokens = 3,
                         .cached_tokens = 2,
                         .output_tokens = 5,
                         .drafts = {.drafted = 8, .accepted = 4}};
  vllm_pb::GenerateComplete complete;
  SetEnd(event, complete);
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 3u);
  EXPECT_EQ(complete.cached_tokens(), 2u);
  EXPECT_EQ(complete.completion_tokens(), 5u);
  EXPECT_EQ(complete.spec_draft_tokens(), 8u);
  EXPECT_EQ(complete.spec_accepted_tokens(), 4u);
  EXPECT_EQ(complete.matched_stop_case(), vllm_pb::GenerateComplete::MATCHED_STOP_NOT_SET);
  event.reason = FinishReason::kCutOff;
  SetEnd(event, complete);
  EXPECT_EQ(complete.finish_reason(), "length") << "there is no other word for it";
  event.reason = FinishReason::kStopString;
  event.matched_stop = "\n\n";
  SetEnd(event, complete);
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.matched_stop_str(), "\n\n");
  event.reason = FinishReason::kStopToken;
  event.matched_id = 5;
  SetEnd(event, complete);
  EXPECT_EQ(complete.matched_token_id(), 5u);
  vllm_pb::GenerateComplete end_of_text;
  event.reason = FinishReason::kEndOfText;
  SetEnd(event, end_of_text);
  EXPECT_EQ(end_of_text.finish_reason(), "stop");
  EXPECT_FALSE(end_of_text.has_matched_token_id());
}

TEST(VllmAnswer, OnlyChunksOfOneAnswerBecomeOne) {
  auto first = FromText<vllm_pb::GenerateResponse>(
      "chunk { token_ids: 1 completion_tokens: 1 index: 1 input_logprobs { token_ids: 9 } }");
  const auto second = FromText<vllm_pb::GenerateResponse>(
      "chunk { token_ids: 2 completion_tokens: 1 index: 1 output_logprobs { token_ids: 2 } }");
  EXPECT_TRUE(Merge(first, second));
  EXPECT_THAT(first.chunk().token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(first.chunk().completion_tokens(), 2u);
  EXPECT_EQ(first.chunk().output_logprobs().token_ids_size(), 1);
  EXPECT_EQ(first.chunk().input_logprobs().token_ids_size(), 1);
  EXPECT_FALSE(Merge(first, FromText<vllm_pb::GenerateResponse>("chunk { index: 0 }")));
  EXPECT_FALSE(Merge(first, FromText<vllm_pb::GenerateResponse>("complete { index: 1 }")));
}

}  // namespace
}  // namespace eta
