#include "service/generate/convert.h"

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "service/wire/grpc_status.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/text_proto.h"

namespace eta {
namespace {

EngineInfo MakeServedModel() {
  EngineInfo model{.kv_dtype = DType::kFloat16};
  model.model_name = "m";
  return model;
}

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(ToRequest, AbsentFieldsAreTheDefaults) {
  v1::GenerateRequest message;
  message.set_text("hello");
  const auto request = ToRequest(message).value();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_FALSE(request.sampling.seed.has_value());
  EXPECT_FALSE(request.parse_special);
  EXPECT_EQ(request.stopping.max_tokens, 256);
  EXPECT_TRUE(request.output.text);
  EXPECT_FALSE(request.output.logprobs.has_value());
  EXPECT_FALSE(request.attention.mode.has_value());
  EXPECT_FALSE(request.attention.settings.z.has_value());
  EXPECT_FALSE(request.attention.settings.sink_blocks.has_value());
  EXPECT_FALSE(request.attention.settings.shared_reads.has_value());
  EXPECT_FALSE(request.attention.settings.temper_special.has_value());
  EXPECT_FALSE(request.attention.settings.min_mass.has_value());
  EXPECT_FALSE(request.attention.begin.has_value());
  EXPECT_EQ(request.priority, Priority::kNormal);
  EXPECT_FALSE(request.speculation.has_value());
}

TEST(ToRequest, PresentZerosAreZeros) {
  const auto request = ToRequest(FromText<v1::GenerateRequest>(R"(
    text: "hello" sampling { temperature: 0 top_p: 0 seed: 0 } stopping { max_tokens: 0 }
    output { text: false logprobs: 0 }
    attention { z: 0 pinned_blocks: 0 sink_blocks: 0 min_mass: 0 })"))
                           .value();
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 0.0f);
  EXPECT_EQ(request.sampling.seed, 0u);
  EXPECT_EQ(request.stopping.max_tokens, 0);
  EXPECT_FALSE(request.output.text);
  EXPECT_EQ(request.output.logprobs, 0);
  EXPECT_EQ(request.attention.settings.z, 0.0f);
  EXPECT_EQ(request.attention.settings.pinned_blocks, 0);
  EXPECT_EQ(request.attention.settings.sink_blocks, 0);
  EXPECT_EQ(request.attention.settings.min_mass, 0.0f);
}

TEST(ToRequest, CarriesEveryField) {
  auto message = FromText<v1::GenerateRequest>(R"(
    token_ids { ids: 5 } request_id: "r1" priority: PRIORITY_HIGH parse_special: true
    speculation: SPECULATION_PROMPT
    sampling {
      temperature: 0.7 top_k: 40 top_p: 0.8 min_p: 0.1 repetition_penalty: 1.1
      presence_penalty: 0.2 frequency_penalty: 0.3 logit_bias { token_id: 7 bias: -3 } seed: 11
    }
    stopping {
      min_tokens: 2 stop_strings: "END" stop_token_ids: 9 ignore_eos: true include_stop: true
    }
    output {
      text: false token_ids: true logprobs: 4 prompt_logprobs: 3 layer_statistics: true
      special_tokens: true
    }
    attention {
      full {} offset: 0.5 z: 1.25 floor: FLOOR_NONE pinned_blocks: 6 sink_blocks: 3
      reads: READS_SHARED special_keys: SPECIAL_KEYS_TEMPER min_mass: 0.9 confirm: true
      prefill: PREFILL_SPARSE begin: BEGIN_FULL_WHERE_RECENT_MASS_WAS_LOW
    })");
  const auto request = ToRequest(message).value();
  EXPECT_EQ(request.id, "r1");
  EXPECT_EQ(request.priority, Priority::kHigh);
  EXPECT_EQ(request.speculation, Speculation::kPrompt);
  EXPECT_TRUE(request.parse_special);
  EXPECT_THAT(std::get<std::vector<int32_t>>(request.prompt), ElementsAre(5));
  EXPECT_EQ(request.sampling.temperature, 0.7f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.top_p, 0.8f);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(request.sampling.presence_penalty, 0.2f);
  EXPECT_FLOAT_EQ(request.sampling.frequency_penalty, 0.3f);
  ASSERT_THAT(request.sampling.bias, SizeIs(1));
  EXPECT_EQ(request.sampling.bias[0].id, 7);
  EXPECT_EQ(request.sampling.seed, 11u);
  EXPECT_EQ(request.stopping.min_tokens, 2);
  EXPECT_THAT(request.stopping.stop_strings, ElementsAre("END"));
  EXPECT_THAT(request.stopping.stop_ids, ElementsAre(9));
  EXPECT_TRUE(request.stopping.ignore_eos);
  EXPECT_TRUE(request.stopping.include_stop);
  EXPECT_FALSE(request.output.text);
  EXPECT_TRUE(request.output.ids);
  EXPECT_EQ(request.output.logprobs, 4);
  EXPECT_EQ(request.output.prompt_logprobs, 3);
  EXPECT_TRUE(request.output.layer_statistics);
  EXPECT_TRUE(request.output.special_tokens);
  EXPECT_TRUE(request.stopping.fit_max_tokens) << "no length was asked for";
  EXPECT_EQ(request.attention.mode, AttentionMode::kFull);
  EXPECT_EQ(request.attention.settings.offset, 0.5f);
  EXPECT_EQ(request.attention.settings.z, 1.25f);
  EXPECT_EQ(request.attention.settings.uniform_floor, false);
  EXPECT_EQ(request.attention.settings.pinned_blocks, 6);
  EXPECT_EQ(request.attention.settings.sink_blocks, 3);
  EXPECT_EQ(request.attention.settings.shared_reads, true);
  EXPECT_EQ(request.attention.settings.temper_special, true);
  EXPECT_EQ(request.attention.settings.min_mass, 0.9f);
  EXPECT_EQ(request.attention.settings.confirm, true);
  EXPECT_EQ(request.attention.settings.sparse_prefill, true);
  EXPECT_EQ(request.attention.begin, Begin::kFullWhereRecentMassWasLow);
  message.mutable_stopping()->set_max_tokens(256);
  EXPECT_FALSE(ToRequest(message)->stopping.fit_max_tokens);
  v1::Attention& attention = *message.mutable_attention();
  attention.set_reads(v1::READS_OWN);
  attention.set_special_keys(v1::SPECIAL_KEYS_ATTEND);
  EXPECT_EQ(ToRequest(message)->attention.settings.shared_reads, false);
  EXPECT_EQ(ToRequest(message)->attention.settings.temper_special, false);
  attention.set_prefill(v1::PREFILL_FULL);
  EXPECT_EQ(ToRequest(message)->attention.settings.sparse_prefill, false);
}

// bad input: Attention | `reads`, `special_keys`, `prefill`, `begin` of a value that is not known |
//   INVALID_ARGUMENT, the field named | BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(ToRequest, NamesReadsAndSpecialKeysThatItDoesNotKnow) {
  v1::GenerateRequest message;
  message.set_text("hello");
  message.mutable_attention()->set_reads(static_cast<v1::Reads>(7));
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "attention.reads");
  message.mutable_attention()->set_reads(v1::READS_OWN);
  message.mutable_attention()->set_special_keys(static_cast<v1::SpecialKeys>(7));
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "attention.special_keys");
  message.mutable_attention()->set_special_keys(v1::SPECIAL_KEYS_ATTEND);
  message.mutable_attention()->set_prefill(static_cast<v1::Prefill>(7));
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "attention.prefill");
  message.mutable_attention()->set_prefill(v1::PREFILL_FULL);
  message.mutable_attention()->set_begin(static_cast<v1::Begin>(7));
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "attention.begin");
}

// bad input: Sampling and stopping | `speculation` of a value that is not known |
//   INVALID_ARGUMENT, the field named | BadInputTest.EnumValuesFromTheFuture
TEST(ToRequest, DraftsComeFromWhereItKnows) {
  v1::GenerateRequest message;
  message.set_text("hello");
  const auto of = [&](v1::Speculation value) {
    message.set_speculation(value);
    return ToRequest(message)->speculation;
  };
  EXPECT_EQ(of(v1::SPECULATION_OFF), Speculation::kOff);
  EXPECT_EQ(of(v1::SPECULATION_SELF), Speculation::kSelf);
  EXPECT_EQ(of(v1::SPECULATION_AUTO), Speculation::kAuto);
  EXPECT_EQ(of(v1::SPECULATION_UNSPECIFIED), std::nullopt);
  message.set_speculation(static_cast<v1::Speculation>(99));
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "speculation");
}

TEST(ToRequest, NeedsAPromptAndWholeBiases) {
  v1::GenerateRequest message;
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "prompt");
  message.set_text("hello");
  message.mutable_sampling()->add_logit_bias()->set_bias(1.0f);
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "sampling.logit_bias[0]");
}

TEST(ToMessage, FinishedTellsWhatStoppedTheAnswer) {
  FinishedEvent event{.matched_id = 2};
  event.reason = FinishReason::kStopToken;
  EXPECT_EQ(ToMessage(event).finished().stop_token_id(), 2);
  event.reason = FinishReason::kEndOfText;
  EXPECT_EQ(ToMessage(event).finished().matched_case(), v1::Finished::kStopTokenId);
  event.reason = FinishReason::kLength;
  event.matched_id.reset();
  EXPECT_EQ(ToMessage(event).finished().matched_case(), v1::Finished::MATCHED_NOT_SET);
  EXPECT_EQ(ToMessage(event).finished().finish_reason(), v1::FINISH_REASON_LENGTH);
  event.reason = FinishReason::kCutOff;
  EXPECT_EQ(ToMessage(event).finished().finish_reason(), v1::FINISH_REASON_CUT_OFF);
}

TEST(ToMessage, FinishedCarriesEverything) {
  using std::chrono::milliseconds;
  const FinishedEvent event = {
      .reason = FinishReason::kStopString,
      .matched_stop = "END",
      .prompt_tokens = 31,
      .cached_tokens = 32,
      .output_tokens = 33,
      .preemptions = 34,
      .timing = {.queue = milliseconds(1500),
                 .prefill = milliseconds(2250),
                 .first_token = milliseconds(3750),
                 .decode = milliseconds(4125)},
      .attention = {.decode_rows = 7,
                    .keys_attended = 1,
                    .keys_eligible = 2,
                    .keys_read = 3,
                    .values_read = 9,
                    .keys_cached = int64_t{1} << 40,
                    .head_density_sum = 1.75,
                    .union_density_sum = 3.5,
                    .kv_bytes_read = 5,
                    .kv_bytes_dense = 6,
                    .index_bytes_read = 8,
                    .fallback_rows = 17,
                    .fallback_kv_bytes_read = 18,
                    .prefill_rows = 13,
                    .prefill_keys_attended = 14,
                    .prefill_keys_eligible = 56,
                    .prefill_density_sum = 9.75,
                    .shadow_row_layers = 16,
                    .mass_kept_sum = 14.0,
                    .output_error_sum = 2.0},
      .drafts = {.drafted = 21, .accepted = 22, .steps_saved = 23, .kv_bytes_rejected = 24},
      .layers = {{0.2, 0.3}, {0.4, 0.6}},
      .full_from = 19};
  EXPECT_THAT(ToMessage(event).finished(), ReadsAs(R"(
    finish_reason: FINISH_REASON_STOP_STRING stop_string: "END"
    usage { prompt_tokens: 31 cached_tokens: 32 output_tokens: 33 }
    timing {
      queue { seconds: 1 nanos: 500000000 } prefill { seconds: 2 nanos: 250000000 }
      first_token { seconds: 3 nanos: 750000000 } decode { seconds: 4 nanos: 125000000 }
    }
    attention {
      decode_steps: 7 head_density: 0.25 union_density: 0.5 kv_bytes_read: 5 kv_bytes_dense: 6
      index_bytes_read: 8 layers { head_density: 0.2 union_density: 0.3 }
      layers { head_density: 0.4 union_density: 0.6 } keys_attended: 1 keys_eligible: 2
      keys_read: 3 keys_cached: 1099511627776 values_read: 9
      prefill_steps: 13 prefill_density: 0.75 prefill_keys_attended: 14 prefill_keys_eligible: 56
      fallback_steps: 17 fallback_kv_bytes_read: 18
      shadow_row_layers: 16 mass_kept: 0.875 output_error: 0.125
    }
    preemptions: 34 full_from: 19
    drafts { drafted: 21 accepted: 22 steps_saved: 23 kv_bytes_rejected: 24 })"));
}

TEST(ToMessage, FinishedIsSilentOfDraftsWhereThereWereNone) {
  EXPECT_FALSE(ToMessage(FinishedEvent()).finished().has_drafts());
}

TEST(ToMessage, StartedNamesTheRopeFactorAndItsBase) {
  StartedEvent event;
  event.rope_factor = 1.25f;
  event.rope_theta = 630000.0f;
  const v1::Started started = ToMessage(event, MakeServedModel()).started();
  EXPECT_EQ(started.rope_factor(), 1.25f);
  EXPECT_EQ(started.rope_theta(), 630000.0f);
}

TEST(ToMessage, StartedNamesTheProfileAndHidesWhatFullAttentionDoesNotRead) {
  StartedEvent event;
  event.attention.mode = AttentionMode::kFull;
  v1::AttentionUsed used = ToMessage(event, MakeServedModel()).started().attention();
  EXPECT_FALSE(used.has_z());
  EXPECT_FALSE(used.has_floor());
  auto profile = std::make_shared<ThresholdProfile>();
  profile->name = "wiki";
  profile->version = 3;
  event.attention.mode = AttentionMode::kProfile;
  event.attention.profile = profile;
  used = ToMessage(event, MakeServedModel()).started().attention();
  EXPECT_EQ(used.profile(), "wiki");
  EXPECT_EQ(used.profile_version(), 3);
  EXPECT_EQ(used.floor(), v1::FLOOR_UNIFORM);
  EXPECT_TRUE(used.has_z());
  event.attention.head_z = true;
  EXPECT_FALSE(ToMessage(event, MakeServedModel()).started().attention().has_z())
      << "each head has its own";
}

TEST(ToMessage, StartedNamesFormatsThatTheProfileWasNotCalibratedWith) {
  ThresholdProfile profile;
  profile.kv_dtype = DType::kFloat16;
  profile.weights = WeightFormat::kInt8;
  StartedEvent event;
  event.attention.mode = AttentionMode::kProfile;
  EngineInfo model = MakeServedModel();
  const auto differences = [&] {
    event.attention.profile = std::make_shared<const ThresholdProfile>(profile);
    return ToMessage(event, model).started().attention().profile_differences();
  };
  model.kv_dtype = DType::kFloat8E4M3;
  ASSERT_THAT(differences(), SizeIs(2));
  EXPECT_EQ(differences()[0].what(), "kv_dtype");
  EXPECT_EQ(differences()[0].profile(), "float16");
  EXPECT_EQ(differences()[0].served(), "float8_e4m3");
  EXPECT_EQ(differences()[1].what(), "weights");
  EXPECT_EQ(differences()[1].profile(), "int8");
  EXPECT_EQ(differences()[1].served(), "native");
  model.kv_dtype = DType::kFloat16;
  model.weights = WeightFormat::kInt8;
  EXPECT_THAT(differences(), SizeIs(0));
}

TEST(ToMessage, StartedNamesWhatGoesBeyondThePaper) {
  StartedEvent event;
  event.attention.mode = AttentionMode::kFull;
  event.attention.temper_special = true;
  v1::AttentionUsed used = ToMessage(event, MakeServedModel()).started().attention();
  EXPECT_EQ(used.special_keys(), v1::SPECIAL_KEYS_TEMPER);
  EXPECT_FALSE(used.has_sink_blocks() || used.has_reads() || used.has_relative_threshold() ||
               used.has_min_mass() || used.has_begin() || used.has_confirm() || used.has_prefill());

  event.attention.mode = AttentionMode::kDynamic;
  used = ToMessage(event, MakeServedModel()).started().attention();
  EXPECT_TRUE(used.has_sink_blocks());
  EXPECT_EQ(used.sink_blocks(), 0);
  EXPECT_EQ(used.reads(), v1::READS_OWN);
  EXPECT_FALSE(used.has_relative_threshold() || used.has_min_mass() || used.has_begin());

  event.attention.temper_special = false;
  event.attention.options.sink_blocks = 1;
  event.attention.options.shared_reads = true;
  event.attention.options.confirm = true;
  event.attention.options.sparse_prefill = true;
  event.attention.options.relative = true;
  event.attention.options.relative_c = -4.5f;
  event.attention.min_mass = 0.75f;
  used = ToMessage(event, MakeServedModel()).started().attention();
  EXPECT_EQ(used.sink_blocks(), 1);
  EXPECT_EQ(used.reads(), v1::READS_SHARED);
  EXPECT_EQ(used.special_keys(), v1::SPECIAL_KEYS_ATTEND);
  EXPECT_EQ(used.relative_threshold(), -4.5f);
  EXPECT_EQ(used.min_mass(), 0.75f);
  EXPECT_EQ(used.begin(), v1::BEGIN_AS_ASKED);
  event.attention.begin = Begin::kFull;
  EXPECT_EQ(ToMessage(event, MakeServedModel()).started().attention().begin(), v1::BEGIN_FULL);
  EXPECT_TRUE(used.confirm());
  EXPECT_EQ(used.prefill(), v1::PREFILL_SPARSE);
  EXPECT_FALSE(used.has_z()) << "which relative thresholds do not read";
}

TEST(Merge, JoinsNeighboursOfAKindAndNothingElse) {
  v1::GenerateResponse last = ToMessage(DeltaEvent{.text = "a", .ids = {1}, .logprobs = {{}}});
  EXPECT_TRUE(Merge(last, ToMessage(DeltaEvent{.text = "b", .ids = {2}, .logprobs = {{}}})));
  EXPECT_EQ(last.delta().text(), "ab");
  EXPECT_THAT(last.delta().token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(last.delta().logprobs_size(), 2);
  EXPECT_FALSE(Merge(last, ToMessage(FinishedEvent())));
  last = ToMessage(PrefillEvent{.done = 1, .total = 9, .prompt_logprobs = {{}}});
  EXPECT_FALSE(Merge(last, ToMessage(DeltaEvent{.text = "b"})));
  EXPECT_TRUE(Merge(last, ToMessage(PrefillEvent{.done = 5, .total = 9, .prompt_logprobs = {{}}})));
  EXPECT_EQ(last.prefill().done(), 5);
  EXPECT_EQ(last.prefill().prompt_logprobs_size(), 2);
}

TEST(ToWireStatus, AHintIsNeverTooEarlyAndSpread) {
  const absl::Status status =
      MakeError(absl::StatusCode::kResourceExhausted, "not now",
                {.reason = "TENANT_TOKENS", .retry_after = std::chrono::milliseconds(1500)});
  EXPECT_EQ(ToWireStatus(status, 0.0).retry_pushback, "1500");
  EXPECT_EQ(ToWireStatus(status, 0.5).retry_pushback, "1650");
  EXPECT_EQ(ToWireStatus(status, 1.0).retry_pushback, "1800");
  const auto retry = testing::DetailOf<google::rpc::RetryInfo>(ToWireStatus(status, 1.0).status);
  EXPECT_EQ(retry->retry_delay().seconds(), 1);
  EXPECT_EQ(retry->retry_delay().nanos(), 800'000'000);
  std::set<std::string> drawn;
  for (int i = 0; i < 100; ++i) {
    const std::string pushback = *ToWireStatus(status).retry_pushback;
    EXPECT_GE(std::stoi(pushback), 1500);
    EXPECT_LE(std::stoi(pushback), 1800);
    drawn.insert(pushback);
  }
  EXPECT_GT(drawn.size(), 20u);
}

TEST(ToWireStatus, AQuotaIsNamed) {
  for (const std::string reason :
       {"TENANT_CALLS", "TENANT_TOKENS", "TENANT_KV", "TENANT_CALIBRATIONS"}) {
    const WireStatus wire = ToWireStatus(
        MakeError(absl::StatusCode::kResourceExhausted, "too much",
                  {.reason = reason, .metadata = {{"quota", "max_calls"}, {"limit", "3"}}}));
    const auto quota = testing::DetailOf<google::rpc::QuotaFailure>(wire.status);
    ASSERT_TRUE(quota.has_value()) << reason;
    EXPECT_EQ(quota->violations(0).subject(), "tenant");
    EXPECT_EQ(quota->violations(0).description(), "max_calls: too much");
    EXPECT_EQ(testing::MetadataOf(wire.status, "limit"), "3");
    EXPECT_EQ(wire.retry_pushback, "-1") << "without a time: do not retry";
  }
}

TEST(ToWireStatus, TheCallerReadsWhatNoLogHas) {
  const absl::Status status =
      MakeError(absl::StatusCode::kInvalidArgument, "chat: refused",
                {.reason = "INVALID_FIELD", .field = "chat", .unlogged = "its words\n=\xc3\xa9"});
  EXPECT_EQ(status.message(), "chat: refused");
  EXPECT_EQ(ToWireStatus(status).status.error_message(), "chat: refused: its words\n=\xc3\xa9");
}

TEST(ToWireStatus, EveryErrorHasAReasonAndABoundedMessage) {
  const WireStatus wire = ToWireStatus(absl::InternalError(std::string(100000, 'x')));
  EXPECT_EQ(wire.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(testing::ReasonOf(wire.status), "INTERNAL_ERROR");
  EXPECT_THAT(wire.status.error_message(), SizeIs(1024));
  EXPECT_EQ(wire.retry_pushback, std::nullopt);
  EXPECT_TRUE(ToWireStatus(absl::OkStatus()).status.ok());
}

}  // namespace
}  // namespace eta
