#include "engine/request/request_validation.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/front/engine.h"
#include "engine/request/profile_validation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/special_floats.h"

namespace eta {
namespace {

using ::testing::HasSubstr;

ModelConfig GatedModel() {
  ModelConfig config;
  config.vocab_size = 100;
  config.num_layers = 2;
  config.num_query_heads = 4;
  config.num_kv_heads = 2;
  config.has_predictor = true;
  config.gate = Gate::kSilu;
  return config;
}

ModelConfig PlainModel() {
  ModelConfig config = GatedModel();
  config.has_predictor = false;
  config.gate = Gate::kNone;
  return config;
}

// As a plain checkpoint is served.
ModelConfig RelativeModel() {
  ModelConfig config = PlainModel();
  config.SetAttentionDefaults();
  return config;
}

Request Good() {
  Request request;
  request.id = "r1";
  request.prompt = std::string("hello");
  return request;
}

absl::Status Validate(const std::function<void(Request&)>& change,
                      const ModelConfig& config = GatedModel()) {
  Request request = Good();
  change(request);
  EngineInfo model;
  model.config = config;
  return ValidateRequest(request, model, Limits());
}

// The field that a refusal names; "ok" if there is none, the reason of any other error.
std::string Field(const std::function<void(Request&)>& change,
                  const ModelConfig& config = GatedModel()) {
  const absl::Status status = Validate(change, config);
  if (status.ok()) return "ok";
  const ErrorDetail detail = GetErrorDetail(status);
  if (status.code() == absl::StatusCode::kInvalidArgument && detail.reason == "INVALID_FIELD") {
    return detail.field;
  }
  return detail.reason;
}

std::shared_ptr<const ThresholdProfile> Profile(int32_t layers, int32_t heads) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->num_layers = layers;
  profile->num_query_heads = heads;
  profile->thresholds.resize(static_cast<size_t>(layers) * heads);
  return profile;
}

std::shared_ptr<const ThresholdProfile> Relative(float c) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->num_layers = 2;
  profile->num_query_heads = 4;
  profile->relative_c = c;
  return profile;
}

TEST(RequestValidation, DefaultsAreValid) {
  EXPECT_EQ(Field([](Request&) {}), "ok");
}

TEST(RequestValidation, APromptIsTextOrTokensAndNotEmpty) {
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::string(); }), "text");
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::vector<int32_t>(); }), "token_ids.ids");
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::vector<int32_t>{0, 99}; }), "ok");
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::string(768 * 1024, 'x'); }), "ok");
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::string(768 * 1024 + 1, 'x'); }), "text");
}

// bad input: Prompts | parse_special with token ids | INVALID_ARGUMENT, field `parse_special`
TEST(RequestValidation, SpecialTokensAreParsedInTextOnly) {
  EXPECT_EQ(Field([](Request& r) { r.parse_special = true; }), "ok");
  EXPECT_EQ(Field([](Request& r) {
              r.parse_special = true;
              r.prompt = std::vector<int32_t>{1, 2};
            }),
            "parse_special");
}

TEST(RequestValidation, ControlCharactersAreDataButBrokenUtf8IsNot) {
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::string("a\0b\x01\x7f\r\n", 7); }), "ok");
  for (const char* bad : {"\xc3\x28", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_EQ(Field([&](Request& r) { r.prompt = std::string(bad); }), "text");
  }
  const absl::Status status = Validate([](Request& r) { r.prompt = std::string("ab\xff"); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("from byte 2 on"));
}

// bad input: Prompts | token id negative or outside the vocabulary | INVALID_ARGUMENT, index of the
//   first bad one | BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, TokenIdsAreInTheVocabularyAndTheFirstBadOneIsNamed) {
  EXPECT_EQ(Field([](Request& r) {
              r.prompt = std::vector<int32_t>{1, 100, -1};
            }),
            "token_ids.ids[1]");
  EXPECT_EQ(Field([](Request& r) { r.prompt = std::vector<int32_t>{1, -1}; }), "token_ids.ids[1]");
  EXPECT_EQ(Field([](Request& r) {
              r.stopping.stop_ids = {5, 100};
            }),
            "stopping.stop_token_ids[1]");
}

TEST(RequestValidation, RequestIdsAreShortAndPrintable) {
  EXPECT_EQ(Field([](Request& r) { r.id = std::string(64, '~'); }), "ok");
  for (const std::string& id :
       {std::string(), std::string(65, 'x'), std::string("a\nb"), std::string("\xc3\xa9"),
        std::string("a\0b", 3), std::string("a b"), std::string(" a"), std::string("a ")}) {
    EXPECT_EQ(Field([&](Request& r) { r.id = id; }), "request_id");
  }
}

struct FloatField {
  std::string name;
  float SamplingOptions::*member;
  std::vector<float> good;
  std::vector<float> bad;
};

// bad input: Sampling and stopping | temperature, top_p, top_k, min_p, penalties outside their
//   ranges, NaN, infinite | INVALID_ARGUMENT, the field named |
//   BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, SamplingNumbersHaveRangesAndNaNIsInNone) {
  const std::vector<FloatField> fields = {
      {"temperature", &SamplingOptions::temperature, {0.0f, 2.0f}, {-0.1f, 2.1f}},
      {"top_p", &SamplingOptions::top_p, {0.001f, 1.0f}, {0.0f, 1.1f, -1.0f}},
      {"min_p", &SamplingOptions::min_p, {0.0f, 1.0f}, {-0.1f, 1.1f}},
      {"repetition_penalty", &SamplingOptions::repetition_penalty, {0.1f, 10.0f}, {0.0f, 10.1f}},
      {"presence_penalty", &SamplingOptions::presence_penalty, {-2.0f, 2.0f}, {-2.1f, 2.1f}},
      {"frequency_penalty", &SamplingOptions::frequency_penalty, {-2.0f, 2.0f}, {-2.1f, 2.1f}},
  };
  for (const FloatField& field : fields) {
    const auto outcome = [&](float value) {
      return Field([&](Request& r) { r.sampling.*field.member = value; });
    };
    for (const float value : field.good) EXPECT_EQ(outcome(value), "ok") << field.name << value;
    for (const float value : field.bad) {
      EXPECT_EQ(outcome(value), "sampling." + field.name) << value;
    }
    for (const float value : {kNaN, kInfinity, -kInfinity}) {
      EXPECT_EQ(outcome(value), "sampling." + field.name) << value;
    }
  }
  EXPECT_EQ(Field([](Request& r) { r.sampling.top_k = -1; }), "sampling.top_k");
}

// bad input: Sampling and stopping | over 256 logit biases, NaN, bad id | INVALID_ARGUMENT |
//   BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, LogitBiasesAreFewDistinctAndFinite) {
  const auto with = [](std::vector<LogitBias> bias) {
    return Field([&](Request& r) { r.sampling.bias = std::move(bias); });
  };
  EXPECT_EQ(with({{0, -100.0f}, {99, 100.0f}}), "ok");
  EXPECT_EQ(with({{0, 1.0f}, {100, 1.0f}}), "sampling.logit_bias[1].token_id");
  EXPECT_EQ(with({{-1, 1.0f}}), "sampling.logit_bias[0].token_id");
  EXPECT_EQ(with({{5, 1.0f}, {5, 2.0f}}), "sampling.logit_bias[1].token_id");
  for (const float bad : {100.5f, -100.5f, kNaN, kInfinity, -kInfinity}) {
    EXPECT_EQ(with({{5, bad}}), "sampling.logit_bias[0].bias");
  }
  EXPECT_EQ(with(std::vector<LogitBias>(257)), "sampling.logit_bias");
}

// bad input: Sampling and stopping | max_tokens negative, zero or over the cap | INVALID_ARGUMENT |
//   BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, AnswersHaveAnEnd) {
  const auto lengths = [](int32_t most, int32_t least) {
    return Field([&](Request& r) {
      r.stopping.max_tokens = most;
      r.stopping.min_tokens = least;
    });
  };
  EXPECT_EQ(lengths(1, 1), "ok");
  EXPECT_EQ(lengths(16384, 0), "ok");
  for (const int32_t bad : {0, -1, 16385, std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(lengths(bad, 0), "stopping.max_tokens");
  }
  EXPECT_EQ(lengths(5, 6), "stopping.min_tokens");
  const auto fitted = [](int32_t least) {
    return Field([&](Request& r) {
      r.stopping.fit_max_tokens = true;
      r.stopping.min_tokens = least;
    });
  };
  EXPECT_EQ(fitted(256), "ok");
  EXPECT_EQ(fitted(257), "stopping.min_tokens");
  EXPECT_EQ(lengths(5, -1), "stopping.min_tokens");
}

// bad input: Sampling and stopping | over 4 stop strings, an empty one, over 64 bytes |
//   INVALID_ARGUMENT | BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, StopsAreFewAndShort) {
  const auto with = [](std::vector<std::string> stops) {
    return Field([&](Request& r) { r.stopping.stop_strings = std::move(stops); });
  };
  EXPECT_EQ(with({"a", "b", "c", std::string(64, 'd')}), "ok");
  EXPECT_EQ(with({"a", "b", "c", "d", "e"}), "stopping.stop_strings");
  EXPECT_EQ(with({"a", ""}), "stopping.stop_strings[1]");
  EXPECT_EQ(with({std::string(65, 'd')}), "stopping.stop_strings[0]");
  EXPECT_EQ(with({"\xff"}), "stopping.stop_strings[0]");
  EXPECT_EQ(Field([](Request& r) { r.stopping.stop_ids.assign(17, 1); }),
            "stopping.stop_token_ids");
}

TEST(RequestValidation, LogprobsAreAtMostTwenty) {
  EXPECT_EQ(Field([](Request& r) { r.output.logprobs = 20; }), "ok");
  EXPECT_EQ(Field([](Request& r) { r.output.logprobs = 21; }), "output.logprobs");
  EXPECT_EQ(Field([](Request& r) { r.output.prompt_logprobs = -1; }), "output.prompt_logprobs");
}

TEST(RequestValidation, AttentionNumbersHaveRanges) {
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.offset = -100.0f; }), "ok");
  for (const float bad : {-100.5f, 100.5f, kNaN, kInfinity}) {
    EXPECT_EQ(Field([&](Request& r) { r.attention.settings.offset = bad; }), "attention.offset");
  }
  for (const float bad : {-0.1f, 16.5f, kNaN, kInfinity}) {
    EXPECT_EQ(Field([&](Request& r) { r.attention.settings.z = bad; }), "attention.z");
  }
  for (const int32_t bad : {-1, 1025}) {
    EXPECT_EQ(Field([&](Request& r) { r.attention.settings.pinned_blocks = bad; }),
              "attention.pinned_blocks");
  }
}

// bad input: Attention | `sink_blocks` outside [0, 1024]; `min_mass` 0, negative, over 1, NaN |
//   INVALID_ARGUMENT, the field named | BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, OptionsOfAttentionHaveRanges) {
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.sink_blocks = 1024; }), "ok");
  for (const int32_t bad : {-1, 1025}) {
    EXPECT_EQ(Field([&](Request& r) { r.attention.settings.sink_blocks = bad; }),
              "attention.sink_blocks");
  }
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.min_mass = 1.0f; }), "ok");
  for (const float bad : {0.0f, -0.5f, 1.5f, kNaN, kInfinity}) {
    EXPECT_EQ(Field([&](Request& r) { r.attention.settings.min_mass = bad; }),
              "attention.min_mass");
  }
}

// bad input: Attention | `begin` without a least mass | INVALID_ARGUMENT, the field named |
//   BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, AnAnswerBeginsOtherwiseWithALeastMassOnly) {
  for (const Begin begin : {Begin::kAsAsked, Begin::kFull, Begin::kFullWhereRecentMassWasLow}) {
    EXPECT_EQ(Field([&](Request& r) { r.attention.begin = begin; }), "attention.begin");
    EXPECT_EQ(Field([&](Request& r) {
                r.attention.begin = begin;
                r.attention.settings.min_mass = 0.9f;
              }),
              "ok");
  }
}

// bad input: Attention | tempered keys without a gate; dynamic without predictor and outliers |
//   FAILED_PRECONDITION, UNSUPPORTED_BY_MODEL | BadPlainAttention.WhatAModelWithoutAGateDoesNotHave
TEST(RequestValidation, KeysAreTemperedWhereThereIsAGate) {
  for (const AttentionMode mode : {AttentionMode::kDynamic, AttentionMode::kFull}) {
    const auto temper = [mode](bool whether) {
      return [mode, whether](Request& r) {
        r.attention.mode = mode;
        r.attention.settings.temper_special = whether;
      };
    };
    EXPECT_EQ(Field(temper(true)), "ok") << "full attention reads it too";
    EXPECT_EQ(Field(temper(true), RelativeModel()), "UNSUPPORTED_BY_MODEL");
    EXPECT_EQ(Field(temper(false), RelativeModel()), "ok");
  }
}

// bad input: Attention | `z` with relative thresholds | INVALID_ARGUMENT, the field named
TEST(RequestValidation, RelativeThresholdsReadNoZ) {
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.z = 1.0f; }, RelativeModel()),
            "attention.z");
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.offset = 1.0f; }, RelativeModel()), "ok");
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.uniform_floor = false; }, RelativeModel()),
            "ok");
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.uniform_floor = true; }, RelativeModel()),
            "UNSUPPORTED_BY_MODEL");
}

// bad input: Attention | with full attention what it does not read: `sink_blocks`, `reads`,
//   `confirm`, `prefill`, `min_mass`, `begin` | INVALID_ARGUMENT, the field named |
//   BadInputTest.FieldsOutsideTheirLimitsAreNamed
TEST(RequestValidation, FullAttentionTakesAnOffsetAndNothingThatPrunes) {
  const auto full = [](const std::function<void(AttentionChoice&)>& change) {
    return Field([&](Request& r) {
      r.attention.mode = AttentionMode::kFull;
      change(r.attention);
    });
  };
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.offset = 1.0f; }), "ok");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.z = 1.0f; }), "attention.z");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.uniform_floor = false; }), "attention.floor");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.pinned_blocks = 2; }),
            "attention.pinned_blocks");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.sink_blocks = 0; }), "attention.sink_blocks");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.shared_reads = false; }), "attention.reads");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.confirm = false; }), "attention.confirm");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.sparse_prefill = false; }),
            "attention.prefill");
  EXPECT_EQ(full([](AttentionChoice& a) { a.settings.min_mass = 0.9f; }), "attention.min_mass");
  EXPECT_EQ(full([](AttentionChoice& a) { a.begin = Begin::kAsAsked; }), "attention.begin");
  EXPECT_EQ(Field([](Request& r) { r.attention.settings.z = 1.0f; }, PlainModel()), "attention.z")
      << "full is the default of a plain model with the paper's index";
}

// bad input: Sampling and stopping | `speculation` self of a model whose rows select nothing |
//   FAILED_PRECONDITION, UNSUPPORTED_BY_MODEL, field `speculation`
TEST(RequestValidation, DraftsBySparserReadsAreOfModelsThatSelect) {
  const auto with = [](Speculation value) {
    return [value](Request& r) { r.speculation = value; };
  };
  for (const Speculation value : {Speculation::kAuto, Speculation::kOff, Speculation::kPrompt}) {
    EXPECT_EQ(Field(with(value)), "ok");
    EXPECT_EQ(Field(with(value), PlainModel()), "ok");
  }
  EXPECT_EQ(Field(with(Speculation::kSelf), GatedModel()), "ok");
  const absl::Status status = Validate(with(Speculation::kSelf), PlainModel());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(status).reason, "UNSUPPORTED_BY_MODEL");
  EXPECT_EQ(GetErrorDetail(status).field, "speculation");
}

TEST(RequestValidation, AModelIsNotAskedForWhatItCannotDo) {
  EXPECT_EQ(Field([](Request& r) { r.attention.mode = AttentionMode::kDynamic; }, PlainModel()),
            "UNSUPPORTED_BY_MODEL");
  const auto floor = [](std::shared_ptr<const ThresholdProfile> profile,
                        const ModelConfig& config) {
    return Field(
        [&](Request& r) {
          r.attention.mode = AttentionMode::kProfile;
          r.attention.profile = std::move(profile);
          r.attention.settings.uniform_floor = true;
        },
        config);
  };
  EXPECT_EQ(floor(Profile(2, 4), GatedModel()), "ok");
  EXPECT_EQ(floor(Relative(-3.0f), RelativeModel()), "UNSUPPORTED_BY_MODEL");
}

TEST(RequestValidation, AProfileFitsTheModel) {
  const auto with = [](std::shared_ptr<const ThresholdProfile> profile) {
    return Field([&](Request& r) {
      r.attention.mode = AttentionMode::kProfile;
      r.attention.profile = std::move(profile);
    });
  };
  EXPECT_EQ(with(Profile(2, 4)), "ok");
  EXPECT_EQ(with(Profile(3, 4)), "PROFILE_MISMATCH");
  EXPECT_EQ(with(Profile(2, 8)), "PROFILE_MISMATCH");
  EXPECT_EQ(with(nullptr), "attention.profile");
}

TEST(RequestValidation, AProfileFitsTheKindOfIndex) {
  EngineInfo served{.kv_dtype = DType::kFloat16};
  served.config = GatedModel();
  ThresholdProfile profile = *Profile(2, 4);
  for (const IndexKind index : {IndexKind::kMoment, IndexKind::kOutlier}) {
    served.index = index;
    EXPECT_TRUE(ValidateProfile(profile, served).ok()) << "it does not say";
  }
  profile.index = IndexKind::kMoment;
  const absl::Status status = ValidateProfile(profile, served);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("calibrated on an index of kind moment, and this server's is of kind outlier"));
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "PROFILE_MISMATCH");
  EXPECT_EQ(detail.metadata.at("mismatch"), "index");
  EXPECT_EQ(detail.metadata.at("profile"), "moment");
  EXPECT_EQ(detail.metadata.at("served"), "outlier");
  served.index = IndexKind::kMoment;
  EXPECT_TRUE(ValidateProfile(profile, served).ok());

  // Formats keep it from nothing.
  profile.kv_dtype = DType::kFloat32;
  profile.weights = WeightFormat::kInt8;
  EXPECT_TRUE(ValidateProfile(profile, served).ok());
  EXPECT_EQ(DifferencesOf(profile, served),
            (std::vector<ProfileDifference>{{"kv_dtype", "float32", "float16"},
                                            {"weights", "int8", "native"}}));
}

// bad input: Profiles | one constant per head, for a model that predicts no thresholds |
//   FAILED_PRECONDITION, PROFILE_MISMATCH, `mismatch` is `thresholds` |
//   LlamaProfileTest.ConstantsAreStoredAndNotServed
TEST(RequestValidation, AModelThatPredictsNothingTakesRelativeProfilesOnly) {
  const auto with = [](const ThresholdProfile& profile, const ModelConfig& config) {
    return Validate(
        [&](Request& r) {
          r.attention.mode = AttentionMode::kProfile;
          r.attention.profile = std::make_shared<ThresholdProfile>(profile);
        },
        config);
  };
  const auto mismatch = [&](const ThresholdProfile& profile, const ModelConfig& config) {
    const ErrorDetail detail = GetErrorDetail(with(profile, config));
    EXPECT_EQ(detail.reason, "PROFILE_MISMATCH");
    const auto found = detail.metadata.find("mismatch");
    return found == detail.metadata.end() ? "" : found->second;
  };
  const ThresholdProfile relative = *Relative(-4.5f);
  const ThresholdProfile constants = *Profile(2, 4);
  EXPECT_TRUE(with(relative, RelativeModel()).ok()) << with(relative, RelativeModel());
  EXPECT_EQ(mismatch(relative, PlainModel()), "index");
  EXPECT_EQ(mismatch(relative, GatedModel()), "thresholds");
  EXPECT_EQ(mismatch(constants, RelativeModel()), "thresholds");
  EXPECT_THAT(std::string(with(constants, RelativeModel()).message()),
              HasSubstr("calibrate anew for a relative threshold"));
  for (const float bad : {kNaN, kInfinity, -101.0f}) {
    EXPECT_EQ(mismatch(*Relative(bad), RelativeModel()), "relative_c[0]");
  }
  ThresholdProfile both = relative;
  both.thresholds = constants.thresholds;
  EXPECT_EQ(mismatch(both, RelativeModel()), "thresholds");
  both = relative;
  both.head_z.assign(8, 1.0f);
  EXPECT_EQ(mismatch(both, RelativeModel()), "head_z");
}

TEST(RequestValidation, WhatAProfileSaysOfARequestIsChecked) {
  const auto with = [](const std::function<void(ThresholdProfile&)>& change) {
    return Field(
        [&](Request& r) {
          auto profile = std::make_shared<ThresholdProfile>(*Relative(-4.5f));
          change(*profile);
          r.attention.mode = AttentionMode::kProfile;
          r.attention.profile = profile;
        },
        RelativeModel());
  };
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.sink_blocks = 2; }), "ok");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.min_mass = 0.9f; }), "ok");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.temper_special = false; }), "ok");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.sink_blocks = -1; }), "PROFILE_MISMATCH");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.sink_blocks = 1025; }), "PROFILE_MISMATCH");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.min_mass = 0.0f; }), "PROFILE_MISMATCH");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.min_mass = kNaN; }), "PROFILE_MISMATCH");
  EXPECT_EQ(with([](ThresholdProfile& p) { p.settings.temper_special = true; }),
            "PROFILE_MISMATCH");
}

// bad input: Prompts | tokens of prompt and answer over the context | INVALID_ARGUMENT,
//   CONTEXT_TOO_LONG with all three numbers; a prompt is never cut |
//   BadInputTest.PromptAndAnswerOverTheContext
TEST(CheckContext, CountsPromptAndAnswerTogether) {
  Limits limits;
  limits.max_context = 100;
  EXPECT_TRUE(CheckContext(60, 40, limits).ok());
  const absl::Status status = CheckContext(61, 40, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "CONTEXT_TOO_LONG");
  EXPECT_EQ(detail.metadata.at("prompt_tokens"), "61");
  EXPECT_EQ(detail.metadata.at("max_tokens"), "40");
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(CheckContext(kHuge, kHuge, limits).ok()) << "their sum overflows";
}

TEST(ResolveAttention, DefaultsFollowTheModel) {
  const ResolvedAttention gated = ResolveAttention({}, GatedModel());
  EXPECT_EQ(gated.mode, AttentionMode::kDynamic);
  EXPECT_TRUE(gated.options.uniform_floor);
  EXPECT_FLOAT_EQ(gated.options.z, 1.5f);
  EXPECT_EQ(gated.options.pinned_blocks, 2);
  EXPECT_FALSE(gated.options.admit_all);

  const ResolvedAttention plain = ResolveAttention({}, PlainModel());
  EXPECT_EQ(plain.mode, AttentionMode::kFull);
  EXPECT_TRUE(plain.options.admit_all);
  EXPECT_FALSE(plain.options.uniform_floor);
}

TEST(ResolveAttention, APlainCheckpointIsSparseByDefault) {
  const ResolvedAttention plain = ResolveAttention({}, RelativeModel());
  EXPECT_EQ(plain.mode, AttentionMode::kDynamic);
  EXPECT_TRUE(plain.options.relative);
  EXPECT_FLOAT_EQ(plain.options.relative_c, -4.3f);
  EXPECT_EQ(plain.options.sink_blocks, 1);
  EXPECT_TRUE(plain.options.shared_reads);
  EXPECT_FALSE(plain.options.confirm);
  EXPECT_FALSE(plain.options.sparse_prefill);
  EXPECT_FALSE(plain.options.uniform_floor);
  EXPECT_FALSE(plain.options.admit_all);
  SequenceRows rows;
  plain.ApplyTo(rows);
  EXPECT_EQ(rows.frozen_thresholds, nullptr);

  const ResolvedAttention full = ResolveAttention({.mode = AttentionMode::kFull}, RelativeModel());
  EXPECT_TRUE(full.options.admit_all);
  EXPECT_FALSE(full.options.relative);
}

TEST(ResolveAttention, ARelativeProfileNamesItsConstant) {
  ThresholdProfile profile = *Relative(-4.5f);
  profile.settings.sink_blocks = 3;
  profile.settings.shared_reads = false;
  profile.settings.confirm = true;
  profile.settings.sparse_prefill = true;
  profile.settings.min_mass = 0.75f;
  AttentionChoice choice = {.mode = AttentionMode::kProfile,
                            .profile = std::make_shared<ThresholdProfile>(profile)};
  const ResolvedAttention defaults = ResolveAttention(choice, RelativeModel());
  EXPECT_TRUE(defaults.options.relative);
  EXPECT_FLOAT_EQ(defaults.options.relative_c, -4.5f);
  EXPECT_EQ(defaults.options.sink_blocks, 3);
  EXPECT_FALSE(defaults.options.shared_reads);
  EXPECT_TRUE(defaults.options.confirm);
  EXPECT_TRUE(defaults.options.sparse_prefill);
  EXPECT_FLOAT_EQ(defaults.min_mass.value_or(0.0f), 0.75f);
  EXPECT_EQ(defaults.begin, Begin::kAsAsked);
  SequenceRows rows;
  defaults.ApplyTo(rows);
  EXPECT_EQ(rows.frozen_thresholds, nullptr);

  choice.settings.sink_blocks = 0;
  choice.settings.shared_reads = true;
  choice.settings.confirm = false;
  choice.settings.sparse_prefill = false;
  choice.settings.min_mass = 0.5f;
  choice.begin = Begin::kFull;
  choice.settings.offset = 1.0f;
  const ResolvedAttention own = ResolveAttention(choice, RelativeModel());
  EXPECT_EQ(own.options.sink_blocks, 0);
  EXPECT_TRUE(own.options.shared_reads);
  EXPECT_FALSE(own.options.confirm);
  EXPECT_FALSE(own.options.sparse_prefill);
  EXPECT_FLOAT_EQ(own.min_mass.value_or(0.0f), 0.5f);
  EXPECT_EQ(own.begin, Begin::kFull);
  EXPECT_FLOAT_EQ(own.options.offset, 1.0f);
}

TEST(ResolveAttention, KeysAreTemperedAsRequestProfileOrModelSays) {
  ModelConfig model = GatedModel();
  EXPECT_FALSE(ResolveAttention({}, model).temper_special);
  model.temper_special = true;
  EXPECT_TRUE(ResolveAttention({}, model).temper_special);
  EXPECT_TRUE(ResolveAttention({.mode = AttentionMode::kFull}, model).temper_special);
  EXPECT_FALSE(ResolveAttention({.settings = {.temper_special = false}}, model).temper_special);
  ThresholdProfile profile = *Profile(2, 4);
  profile.settings.temper_special = false;
  AttentionChoice choice = {.mode = AttentionMode::kProfile,
                            .profile = std::make_shared<ThresholdProfile>(profile)};
  EXPECT_FALSE(ResolveAttention(choice, model).temper_special);
  choice.settings.temper_special = true;
  EXPECT_TRUE(ResolveAttention(choice, model).temper_special);
}

TEST(ResolveAttention, WithoutTheFloorZIsThePapers) {
  AttentionChoice choice;
  choice.settings.uniform_floor = false;
  EXPECT_FLOAT_EQ(ResolveAttention(choice, GatedModel()).options.z, 2.0f);
  choice.settings.z = 1.0f;
  EXPECT_FLOAT_EQ(ResolveAttention(choice, GatedModel()).options.z, 1.0f);
}

TEST(ResolveAttention, AProfilesDefaultsGiveWayToTheRequests) {
  ThresholdProfile calibrated = *Profile(2, 4);
  calibrated.settings.offset = 0.5f;
  calibrated.settings.z = 1.25f;
  calibrated.settings.uniform_floor = false;
  calibrated.head_z.assign(8, 2.0f);
  AttentionChoice choice;
  choice.mode = AttentionMode::kProfile;
  choice.profile = std::make_shared<ThresholdProfile>(calibrated);
  const ResolvedAttention defaults = ResolveAttention(choice, GatedModel());
  EXPECT_FLOAT_EQ(defaults.options.offset, 0.5f);
  EXPECT_FLOAT_EQ(defaults.options.z, 1.25f);
  EXPECT_FALSE(defaults.options.uniform_floor);
  EXPECT_TRUE(defaults.head_z);

  choice.settings.z = 3.0f;
  choice.settings.offset = 0.0f;
  choice.settings.uniform_floor = true;
  const ResolvedAttention own = ResolveAttention(choice, GatedModel());
  EXPECT_FLOAT_EQ(own.options.offset, 0.0f);
  EXPECT_FLOAT_EQ(own.options.z, 3.0f);
  EXPECT_TRUE(own.options.uniform_floor);
  EXPECT_FALSE(own.head_z) << "one z for all heads was asked for";

  choice.mode = AttentionMode::kDynamic;
  EXPECT_FALSE(ResolveAttention(choice, GatedModel()).profile) << "of another mode";
}

TEST(UsedSettings, AreAllThatTheRowsReadAndNothingElse) {
  const auto used = [](const AttentionChoice& choice, const ModelConfig& config) {
    return UsedSettings(ResolveAttention(choice, config));
  };
  const AttentionChoice full = {.mode = AttentionMode::kFull,
                                .settings = {.offset = 0.5f, .temper_special = true}};
  EXPECT_EQ(used(full, GatedModel()), (AttentionSettings{.offset = 0.5f, .temper_special = true}));

  // A gated model's own, and what a request says instead.
  EXPECT_EQ(used({}, GatedModel()), (AttentionSettings{.offset = 0.0f,
                                                       .z = 1.5f,
                                                       .uniform_floor = true,
                                                       .pinned_blocks = 2,
                                                       .sink_blocks = 0,
                                                       .shared_reads = false,
                                                       .confirm = false,
                                                       .sparse_prefill = false,
                                                       .temper_special = false}));
  const AttentionChoice own = {.settings = {.offset = 0.5f,
                                            .z = 1.25f,
                                            .uniform_floor = false,
                                            .pinned_blocks = 3,
                                            .sink_blocks = 4,
                                            .shared_reads = true,
                                            .confirm = true,
                                            .sparse_prefill = true,
                                            .temper_special = true,
                                            .min_mass = 0.75f}};
  EXPECT_EQ(used(own, GatedModel()), own.settings);

  const AttentionChoice confirmed = {.settings = {.confirm = true}};
  EXPECT_EQ(used(confirmed, RelativeModel()), (AttentionSettings{.offset = 0.0f,
                                                                 .uniform_floor = false,
                                                                 .pinned_blocks = 2,
                                                                 .sink_blocks = 1,
                                                                 .shared_reads = true,
                                                                 .confirm = true,
                                                                 .sparse_prefill = false,
                                                                 .temper_special = false}))
      << "relative thresholds read no z";

  ThresholdProfile profile = *Profile(2, 4);
  profile.head_z.assign(8, 2.0f);
  profile.settings.sparse_prefill = true;
  profile.settings.min_mass = 0.9f;
  AttentionChoice choice = {.mode = AttentionMode::kProfile,
                            .profile = std::make_shared<ThresholdProfile>(profile)};
  EXPECT_EQ(used(choice, GatedModel()), (AttentionSettings{.offset = 0.0f,
                                                           .uniform_floor = true,
                                                           .pinned_blocks = 2,
                                                           .sink_blocks = 0,
                                                           .shared_reads = false,
                                                           .confirm = false,
                                                           .sparse_prefill = true,
                                                           .temper_special = false,
                                                           .min_mass = 0.9f}))
      << "heads have their own z";
  choice.settings.z = 3.0f;
  EXPECT_EQ(used(choice, GatedModel()).z, 3.0f) << "one z for all heads was asked for";
}

TEST(RequestValidation, TextIsBoundedAndUtf8) {
  Limits limits;
  limits.max_prompt_bytes = 4;
  EXPECT_TRUE(ValidateText("abcd", limits).ok());
  for (const char* text : {"", "abcde", "a\xff"}) {
    EXPECT_EQ(GetErrorDetail(ValidateText(text, limits)).field, "text") << text;
  }
}

}  // namespace
}  // namespace eta
