// A Calibrate call from both ends: the test plays the client and the calibration.
#include "calibration/calibrate/calibration_job.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr char kCalibrateMethod[] = "/eta.v1.EtaService/Calibrate";

TEST_F(CalibrateTest, TellsItsProgressAndAnswersWhatItStored) {
  CalibrationJob job;
  work_ = [&](Engine&, const CalibrationJob& asked, const CalibrationObserver& observer,
              const std::stop_token&) {
    job = asked;
    for (int i = 1; i <= 3; ++i) {
      observer({.phase = CalibrationPhase::kVerify,
                .sequences_done = i,
                .sequences_total = 3,
                .tokens_per_second = 512.5,
                .seconds_left = 2.25});
    }
    return Made(asked);
  };
  v1::CalibrateRequest request = Request();
  (*request.mutable_labels())["domain"] = "law";
  v1::CalibrationSample& more = *request.add_samples();
  more.mutable_token_ids()->add_ids(7);
  more.set_document("book");
  *request.add_samples() = more;
  request.set_held_out(0.5);
  request.set_z_recall(0.95);
  request.set_offset(0.25f);
  request.set_z(1.25f);
  request.set_floor(v1::FLOOR_NONE);
  request.set_sink_blocks(3);
  request.set_reads(v1::READS_SHARED);
  request.set_special_keys(v1::SPECIAL_KEYS_TEMPER);
  request.set_confirm(true);
  request.set_prefill(v1::PREFILL_SPARSE);
  request.set_min_mass(0.75f);
  request.set_min_retrieval(0.95);
  request.set_allow_loss(true);
  request.set_sequence_tokens(512);
  request.set_request_id("cal-1");
  grpc::ClientContext context;
  const CalibrateOutcome outcome = Calibrate(request, context);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-eta-request-id"), 1u);

  ASSERT_FALSE(outcome.progress.empty());
  const v1::CalibrationProgress& last = outcome.progress.back();
  EXPECT_EQ(last.phase(), v1::CALIBRATION_PHASE_VERIFY);
  EXPECT_EQ(last.sequences_done(), 3);
  EXPECT_EQ(last.sequences_total(), 3);
  EXPECT_EQ(last.tokens_per_second(), 512.5);
  EXPECT_EQ(last.time_left().seconds(), 2);
  EXPECT_EQ(last.time_left().nanos(), 250'000'000);

  EXPECT_EQ(job.id, "cal-1");
  EXPECT_EQ(job.tenant, "default");
  ASSERT_EQ(job.samples.size(), 3u);
  EXPECT_THAT(job.documents, ElementsAre(0, 1, 1));
  EXPECT_EQ(job.samples[0], *engine_->Tokenize(request.samples(0).text()));
  EXPECT_THAT(job.samples[1], ElementsAre(7));
  EXPECT_EQ(job.held_out, 0.5);
  EXPECT_EQ(job.target, (ProfileTarget{ProfileTargetKind::kUnionDensity, 0.35}));
  EXPECT_EQ(job.z_recall, 0.95);
  EXPECT_EQ(job.settings.z, 1.25f);
  EXPECT_EQ(job.settings.offset, 0.25f);
  EXPECT_EQ(job.settings.uniform_floor, false);
  EXPECT_EQ(job.settings.sink_blocks, 3);
  EXPECT_EQ(job.settings.shared_reads, true);
  EXPECT_EQ(job.settings.temper_special, true);
  EXPECT_EQ(job.settings.confirm, true);
  EXPECT_EQ(job.settings.sparse_prefill, true);
  EXPECT_EQ(job.settings.min_mass, 0.75f);
  EXPECT_EQ(job.min_retrieval, 0.95);
  EXPECT_TRUE(job.allow_loss);
  EXPECT_EQ(job.sequence_tokens, 512);

  ASSERT_TRUE(outcome.profile.has_value());
  const auto record = store_->others().Get(TenantOf("default"), "legal", Newest());
  ASSERT_TRUE(record.ok()) << record.status();
  const v1::Profile& profile = *outcome.profile;
  EXPECT_EQ(profile.name(), "legal");
  EXPECT_EQ(profile.version(), 1);
  EXPECT_EQ(profile.checksum(), (*record)->checksum);
  EXPECT_THAT(profile.thresholds(), ElementsAreArray((*record)->content.thresholds));
  EXPECT_EQ(profile.target().union_density(), 0.35);
  EXPECT_EQ(profile.labels().at("domain"), "law");
  EXPECT_EQ(profile.evidence().perplexity_frozen(), (*record)->content.evidence.perplexity_frozen);
  EXPECT_EQ(profile.request_id(), "cal-1");
  const ProfileEvidence& evidence = (*record)->content.evidence;
  EXPECT_EQ(profile.evidence().retained_mass(), evidence.retained_mass);
  EXPECT_EQ(profile.evidence().retained_mass_p1(), evidence.retained_mass_p1);
  EXPECT_EQ(profile.evidence().single_needles().frozen(), evidence.single_needles->frozen);
  EXPECT_EQ(profile.evidence().multi_needles().kept(), evidence.multi_needles->kept);
  EXPECT_NEAR(profile.evidence().kept_needles().low(), 0.490, 1e-3) << "of 8 kept of 10";
  EXPECT_NEAR(profile.evidence().kept_needles().high(), 0.943, 1e-3);
  EXPECT_FALSE(profile.evidence().unverified());
  EXPECT_FALSE(profile.has_relative_threshold());
  EXPECT_EQ(profile.reads(), v1::READS_OWN);
  EXPECT_EQ(profile.special_keys(), v1::SPECIAL_KEYS_ATTEND);
  EXPECT_FALSE(profile.has_min_mass());
}

TEST_F(CalibrateTest, EvidenceSaysWhatWasNotJudged) {
  work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                 const std::stop_token&) {
    absl::StatusOr<CalibrationResult> made = Made(job);
    ProfileEvidence& evidence = made->content.evidence;
    evidence.increase_over_full.reset();
    evidence.increase_over_dynamic.reset();
    evidence.single_needles = NeedleHits{.asked = 6, .full = 0, .frozen = 1, .kept = 0};
    evidence.multi_needles = evidence.single_needles;
    return made;
  };
  const CalibrateOutcome outcome = Calibrate(Request());
  ASSERT_TRUE(outcome.profile.has_value()) << outcome.status.error_message();
  EXPECT_TRUE(outcome.profile->evidence().unverified());
  EXPECT_FALSE(outcome.profile->evidence().has_kept_needles());
}

TEST_F(CalibrateTest, ARelativeProfileIsAnsweredAsOne) {
  work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                 const std::stop_token&) {
    absl::StatusOr<CalibrationResult> made = Made(job);
    MakeRelative(made->content);
    return made;
  };
  const CalibrateOutcome outcome = Calibrate(Request());
  ASSERT_TRUE(outcome.profile.has_value()) << outcome.status.error_message();
  const v1::Profile& profile = *outcome.profile;
  EXPECT_EQ(profile.relative_threshold(), -3.9f);
  EXPECT_EQ(profile.thresholds_size(), 0);
  EXPECT_EQ(profile.sink_blocks(), 1);
  EXPECT_EQ(profile.reads(), v1::READS_SHARED);
  EXPECT_EQ(profile.min_mass(), 0.9f);
  EXPECT_EQ(profile.target().retained_mass(), 0.95);
}

// bad input: Calibrate | a profile that costs over 3 % perplexity, or a needle |
//   FAILED_PRECONDITION, PROFILE_LOSES with the nearest that passes; stored with `allow_loss` |
//   EtactlCalibrateProcessTest.AProfileThatLosesIsStoredIfThatIsAllowed
TEST_F(CalibrateTest, AProfileThatWouldLoseIsNotStored) {
  work_ = [](Engine&, const CalibrationJob& job, const CalibrationObserver&,
             const std::stop_token&) -> absl::StatusOr<CalibrationResult> {
    if (job.allow_loss) return absl::InternalError("not asked for");
    return MakeError(absl::StatusCode::kFailedPrecondition, "the profile would lose too much",
                     {.reason = "PROFILE_LOSES", .metadata = {{"needles_kept", "3"}}});
  };
  const CalibrateOutcome outcome = Calibrate(Request());
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::FAILED_PRECONDITION, "PROFILE_LOSES"));
  EXPECT_EQ(MetadataOf(outcome.status, "needles_kept"), "3");
  EXPECT_EQ(StoredVersion("legal"), 0);
}

// bad input: Calibrate | the same request id, same payload | OK, the first result to the byte,
//   nothing is computed again | BadProfileTest.ARequestIdIsOfOneRequest
TEST_F(CalibrateTest, TheSameRequestIdIsOneCalibration) {
  v1::CalibrateRequest request = Request();
  request.set_request_id("once");
  const CalibrateOutcome first = Calibrate(request);
  ASSERT_TRUE(first.status.ok());
  const CalibrateOutcome again = Calibrate(request);
  ASSERT_TRUE(again.status.ok());
  EXPECT_EQ(again.profile->SerializeAsString(), first.profile->SerializeAsString());
  EXPECT_EQ(runs_, 1);
  EXPECT_EQ(StoredVersion("legal"), 1);

  request.mutable_target()->set_union_density(0.25);
  ExpectRefusal(request, StatusCode::ALREADY_EXISTS, "REQUEST_ID_REUSED");
  request = Request("other-name");
  request.set_request_id("once");
  ExpectRefusal(request, StatusCode::ALREADY_EXISTS, "REQUEST_ID_REUSED");
  EXPECT_EQ(StoredVersion("legal"), 1);
}

TEST_F(CalibrateTest, AFailedRequestIdMayBeUsedAgain) {
  work_ = [](Engine&, const CalibrationJob&, const CalibrationObserver&, const std::stop_token&) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "target.union_density: too low",
                     {.reason = "TARGET_UNREACHABLE",
                      .field = "target.union_density",
                      .metadata = {{"nearest", "0.41"}}});
  };
  v1::CalibrateRequest request = Request();
  request.set_request_id("once");
  const CalibrateOutcome failed = Calibrate(request);
  EXPECT_THAT(failed.status, FailsWith(StatusCode::FAILED_PRECONDITION, "TARGET_UNREACHABLE"));
  EXPECT_EQ(MetadataOf(failed.status, "nearest"), "0.41");
  EXPECT_EQ(StoredVersion("legal"), 0);
  Work();
  request.mutable_target()->set_union_density(0.5);
  EXPECT_TRUE(Calibrate(request).status.ok());
}

// bad input: Calibrate | create-only, the name taken | ALREADY_EXISTS, PROFILE_EXISTS
TEST_F(CalibrateTest, AnExpectedVersionIsCheckedBeforeAnyWork) {
  v1::CalibrateRequest request = Request();
  request.set_expected_version(0);
  ASSERT_TRUE(Calibrate(request).status.ok());
  ExpectRefusal(request, StatusCode::ALREADY_EXISTS, "PROFILE_EXISTS");
  request.set_expected_version(2);
  ExpectRefusal(request, StatusCode::ABORTED, "VERSION_MISMATCH");
  request.set_expected_version(1);
  EXPECT_TRUE(Calibrate(request).status.ok());
  EXPECT_EQ(StoredVersion("legal"), 2);
}

TEST_F(CalibrateTest, AStagedVersionIsStoredAndNotTheNewest) {
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  v1::CalibrateRequest request = Request();
  request.set_stage(true);
  request.set_expected_version(1);
  for (const int64_t version : {2, 3}) {
    const CalibrateOutcome outcome = Calibrate(request);
    ASSERT_TRUE(outcome.profile.has_value()) << outcome.status.error_message();
    EXPECT_EQ(outcome.profile->version(), version);
    EXPECT_TRUE(outcome.profile->staged());
    EXPECT_EQ(StoredVersion("legal"), 1);
  }
  v1::GenerateRequest generate = Ask("hello");
  generate.mutable_attention()->set_profile("legal");
  ClientCall client(*stub_);
  client.Start(generate);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().attention.profile->version, 1) << "nor is it in memory";
  call->Start();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(CalibrateTest, AVersionThatDynamicThresholdsDominateIsStaged) {
  work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                 const std::stop_token&) {
    absl::StatusOr<CalibrationResult> made = Made(job);
    ProfileEvidence& evidence = made->content.evidence;
    evidence.perplexity_dynamic = evidence.perplexity_frozen;
    evidence.dynamic_union_density = evidence.union_density;
    return made;
  };
  const CalibrateOutcome staged = Calibrate(Request());
  ASSERT_TRUE(staged.profile.has_value()) << staged.status.error_message();
  EXPECT_TRUE(staged.profile->staged());
  EXPECT_TRUE(staged.profile->evidence().dynamic_dominates());
  EXPECT_EQ(StoredVersion("legal"), 0) << "no version is the newest";
  v1::CalibrateRequest allowed = Request();
  allowed.set_allow_loss(true);
  const CalibrateOutcome newest = Calibrate(allowed);
  ASSERT_TRUE(newest.profile.has_value()) << newest.status.error_message();
  EXPECT_FALSE(newest.profile->staged());
  EXPECT_EQ(StoredVersion("legal"), 2);
  Work();
  const CalibrateOutcome better = Calibrate(Request());
  ASSERT_TRUE(better.profile.has_value());
  EXPECT_FALSE(better.profile->staged());
  EXPECT_FALSE(better.profile->evidence().dynamic_dominates());
}

// bad input: Calibrate | two of one version at once | one OK, the other ABORTED, VERSION_MISMATCH
//   naming the newest | BadProfileTest.OfTwoCalibrationsOfOneVersionOneIsStored
TEST_F(CalibrateTest, OfTwoAtOnceForOneVersionOneWins) {
  ServerOptions options;
  options.max_calibrations = 2;
  Serve(options);
  for (int version = 0; version < 2; ++version) {
    std::promise<void> both;
    std::shared_future<void> go = both.get_future().share();
    work_ = [&, go](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                    const std::stop_token&) {
      go.wait();
      return Made(job);
    };
    v1::CalibrateRequest request = Request();
    request.set_expected_version(version);
    auto first = CalibrateLater(request);
    auto second = CalibrateLater(request);
    while (runs_ < 2 * (version + 1)) std::this_thread::sleep_for(milliseconds(1));
    both.set_value();
    std::vector<grpc::Status> statuses = {first.get().status, second.get().status};
    std::sort(statuses.begin(), statuses.end(),
              [](const auto& a, const auto& b) { return a.error_code() < b.error_code(); });
    EXPECT_TRUE(statuses[0].ok());
    EXPECT_EQ(StoredVersion("legal"), version + 1);
    if (version == 0) {
      EXPECT_EQ(ReasonOf(statuses[1]), "PROFILE_EXISTS");
    } else {
      EXPECT_EQ(statuses[1].error_code(), StatusCode::ABORTED);
      EXPECT_EQ(ReasonOf(statuses[1]), "VERSION_MISMATCH");
      EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(statuses[1]).has_value())
          << "the same call would fail again";
      EXPECT_EQ(MetadataOf(statuses[1], "present_version"), std::to_string(version + 1));
    }
  }
}

TEST_F(CalibrateTest, MoreThanMayRunAreRefusedUntilOneEnds) {
  Gate gate;
  WorkBehind(gate);
  auto first = CalibrateLater(Request());
  gate.AwaitStart();
  const CalibrateOutcome refused = Calibrate(Request("code"));
  EXPECT_THAT(refused.status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "CALIBRATION_BUSY"));
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(refused.status).has_value());
  EXPECT_TRUE(DetailOf<google::rpc::QuotaFailure>(refused.status).has_value());
  ExpectGoodCall();  // requests are served meanwhile
  gate.Go();
  EXPECT_TRUE(first.get().status.ok());
  ExpectGoodCalibration();
}

// bad input: Limits and load | a tenant over its calibrations at a time | RESOURCE_EXHAUSTED,
//   TENANT_CALIBRATIONS with RetryInfo
TEST_F(CalibrateTest, ATenantThatHasItsShareIsRefusedAndOthersAreServed) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  options.max_calibrations = 2;
  limits_ = std::make_unique<TenantLimits>();
  ASSERT_TRUE(limits_->Apply(R"({"default": {"max_calibrations": 1}})").ok());
  Serve(options);
  Gate gate;
  WorkBehind(gate);
  auto first = CalibrateLater(Request(), "acme");
  gate.AwaitStart();
  Work();
  const CalibrateOutcome refused = Calibrate(Request("code"), "acme");
  EXPECT_THAT(refused.status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_CALIBRATIONS"));
  const auto quota = DetailOf<google::rpc::QuotaFailure>(refused.status);
  EXPECT_EQ(quota->violations(0).subject(), "tenant");
  EXPECT_THAT(quota->violations(0).description(), ::testing::StartsWith("max_calibrations: "));
  EXPECT_GT(std::stoi("0" + refused.pushback), 0);
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(refused.status).has_value());
  EXPECT_TRUE(Calibrate(Request("code"), "globex").status.ok());
  gate.Go();
  EXPECT_TRUE(first.get().status.ok());
  EXPECT_TRUE(Calibrate(Request("code"), "acme").status.ok());
}

// bad input: Calibrate | no samples, over a cap, NaN; `document` over 255 bytes; settings, targets
//   and needles outside their ranges | INVALID_ARGUMENT naming the field, before any work |
//   BadProfileTest.CalibrationsThatMakeNoSenseCostNothing
TEST_F(CalibrateTest, BadFieldsAreNamedAndCostNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  using R = v1::CalibrateRequest;
  for (const std::string name : {"", "../x", ".hidden", "a b", "x';--", "\xd0\xb0", "legal@1"}) {
    ExpectBadField([&](R& r) { r.set_name(name); }, "name");
  }
  ExpectBadField([&](R& r) { r.set_name(std::string(64, 'a')); }, "name");
  ExpectBadField([](R& r) { (*r.mutable_labels())["A"] = "x"; }, "labels");
  ExpectBadField([](R& r) { (*r.mutable_labels())["a"] = std::string(256, 'x'); }, "labels.a");
  ExpectBadField([](R& r) { r.clear_samples(); }, "samples");
  ExpectBadField(
      [](R& r) {
        for (int i = 0; i < 1024; ++i) r.add_samples()->set_text("x");
      },
      "samples");
  ExpectBadField([](R& r) { r.add_samples(); }, "samples[1]");
  ExpectBadField([](R& r) { r.add_samples()->set_text(""); }, "samples[1].text");
  ExpectBadField([](R& r) { r.add_samples()->set_text("\xc3\x28"); }, "samples[1].text");
  ExpectBadField([](R& r) { r.add_samples()->set_text(std::string(768 * 1024 + 1, 'x')); },
                 "samples[1].text");
  ExpectBadField([](R& r) { r.add_samples()->mutable_token_ids(); }, "samples[1].token_ids.ids");
  ExpectBadField([](R& r) { r.add_samples()->mutable_token_ids()->add_ids(1000); },
                 "samples[1].token_ids.ids[0]");
  ExpectBadField([](R& r) { r.add_samples()->mutable_token_ids()->add_ids(-1); },
                 "samples[1].token_ids.ids[0]");
  for (const double value : {0.0, -0.1, 0.91, nan, infinity}) {
    ExpectBadField([&](R& r) { r.set_held_out(value); }, "held_out");
  }
  ExpectBadField([](R& r) { r.mutable_samples(0)->set_document(std::string(256, 'x')); },
                 "samples[0].document");
  ExpectBadField([](R& r) { r.mutable_target()->clear_target(); }, "target");
  for (const double value : {0.0, -0.1, 1.01, nan, infinity}) {
    ExpectBadField([&](R& r) { r.mutable_target()->set_head_density(value); },
                   "target.head_density");
    ExpectBadField([&](R& r) { r.mutable_target()->set_union_density(value); },
                   "target.union_density");
    ExpectBadField([&](R& r) { r.set_z_recall(value); }, "z_recall");
  }
  for (const double value : {-1.0, 1001.0, nan, infinity}) {
    ExpectBadField([&](R& r) { r.mutable_target()->set_max_perplexity_increase(value); },
                   "target.max_perplexity_increase");
    ExpectBadField(
        [&](R& r) {
          r.mutable_target()->mutable_dynamic_union_density()->set_max_perplexity_increase(value);
        },
        "target.dynamic_union_density.max_perplexity_increase");
  }
  for (const double value : {-101.0, 101.0, nan, infinity}) {
    ExpectBadField([&](R& r) { r.set_offset(static_cast<float>(value)); }, "offset");
  }
  for (const double value : {-0.5, 16.5, nan, infinity}) {
    ExpectBadField([&](R& r) { r.set_z(static_cast<float>(value)); }, "z");
  }
  ExpectBadField([](R& r) { r.set_floor(static_cast<v1::Floor>(9)); }, "floor");
  ExpectBadField([](R& r) { r.set_reads(static_cast<v1::Reads>(3)); }, "reads");
  ExpectBadField([](R& r) { r.set_special_keys(static_cast<v1::SpecialKeys>(3)); }, "special_keys");
  ExpectBadField([](R& r) { r.set_prefill(static_cast<v1::Prefill>(3)); }, "prefill");
  for (const int32_t blocks : {-1, 1025}) {
    ExpectBadField([&](R& r) { r.set_sink_blocks(blocks); }, "sink_blocks");
  }
  for (const double value : {0.0, -1.0, 1.5, nan, infinity}) {
    ExpectBadField([&](R& r) { r.set_min_mass(static_cast<float>(value)); }, "min_mass");
    ExpectBadField([&](R& r) { r.set_min_retrieval(value); }, "min_retrieval");
    ExpectBadField([&](R& r) { r.mutable_target()->set_retained_mass(value); },
                   "target.retained_mass");
  }
  for (const int tokens : {-1, 0, 65'536}) {
    ExpectBadField([&](R& r) { r.set_sequence_tokens(tokens); }, "sequence_tokens");
  }
  ExpectBadField([](R& r) { r.set_expected_version(-1); }, "expected_version");
  ExpectBadField([](R& r) { r.set_request_id(std::string(65, 'x')); }, "request_id");
  for (const std::string& id :
       {std::string("a\nb"), std::string("a b"), std::string("\xd0\xb5"), std::string("a\0b", 3)}) {
    ExpectBadField([&](R& r) { r.set_request_id(id); }, "request_id");
  }

  v1::CalibrateRequest request = Request();
  request.set_model("another");
  ExpectRefusal(request, StatusCode::NOT_FOUND, "MODEL_NOT_FOUND");
}

TEST_F(CalibrateTest, WithoutATargetItIsWhatTheModelDoesByItself) {
  CalibrationJob job;
  work_ = [&](Engine&, const CalibrationJob& asked, const CalibrationObserver&,
              const std::stop_token&) {
    job = asked;
    return Made(asked);
  };
  v1::CalibrateRequest request = Request();
  request.clear_target();
  const CalibrateOutcome outcome = Calibrate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(job.target, DefaultTarget(engine_->info().config));
  const v1::CalibrationTarget& target = outcome.profile->target();
  EXPECT_EQ(target.has_dynamic_union_density(), engine_->info().config.has_predictor);
  request.mutable_target()->mutable_dynamic_union_density();
  ASSERT_TRUE(Calibrate(request).status.ok());
  EXPECT_EQ(job.target, (ProfileTarget{ProfileTargetKind::kDynamicUnionDensity, 0.5}));
  request.mutable_target()->mutable_dynamic_union_density()->set_max_perplexity_increase(2.0);
  ASSERT_TRUE(Calibrate(request).status.ok());
  EXPECT_EQ(job.target, (ProfileTarget{ProfileTargetKind::kDynamicUnionDensity, 2.0}));
}

// bad input: Calibrate | too many tokens | INVALID_ARGUMENT, before any work
TEST_F(CalibrateTest, TokensOverTheLimitAreRefused) {
  ServerOptions options;
  options.max_calibration_tokens = 100;
  Serve(options);
  ExpectBadField(
      [](v1::CalibrateRequest& r) {
        for (int i = 0; i < 101; ++i) r.mutable_samples(0)->mutable_token_ids()->add_ids(5);
      },
      "samples");
  ExpectBadField(
      [](v1::CalibrateRequest& r) { r.mutable_samples(0)->set_text(std::string(100, 'x')); },
      "samples");
}

// bad input: Messages | over 2 MiB; with a store, Calibrate over 8 MiB, ImportProfile over 5 MiB |
//   RESOURCE_EXHAUSTED: by the gRPC library without details, below its limit MESSAGE_TOO_LARGE |
//   BadProfileTest.MessagesOverTheLimitOfTheirMethod
TEST_F(CalibrateTest, MessagesAreHeldAgainstTheLimitOfTheirMethod) {
  const auto exchange = [this](const char* method, size_t bytes) {
    return GenericCall(channel_, method).Exchange(std::string(bytes, 'x'));
  };
  constexpr size_t kMiB = 1 << 20;
  grpc::Status status = exchange(kGenerateMethod, kMiB + 1);
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"));
  EXPECT_EQ(MetadataOf(status, "limit"), std::to_string(kMiB));
  EXPECT_EQ(exchange(kCalibrateMethod, 8 * kMiB + 1).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  status = exchange("/eta.v1.ProfileService/ImportProfile", 5 * kMiB + 1);
  EXPECT_EQ(ReasonOf(status), "MESSAGE_TOO_LARGE");
  status = exchange("/eta.v1.ProfileService/GetProfile", kMiB + 1);
  EXPECT_EQ(ReasonOf(status), "MESSAGE_TOO_LARGE");
  status = GenericCall(channel_, kCalibrateMethod).Exchange("\xff\xff\xff\xff");
  EXPECT_THAT(status, FailsWith(StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE"));
  EXPECT_EQ(runs_, 0);
}

TEST_F(CalibrateTest, AServerWithoutAStoreSaysSo) {
  const auto store = std::move(store_);
  Serve();
  const CalibrateOutcome outcome = Calibrate(Request());
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::FAILED_PRECONDITION, "STORE_NOT_CONFIGURED"));
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("--profile_store"));
  StopServing();
  store_ = std::make_unique<FaultyStore>();
  Serve();
}

TEST_F(CalibrateTest, TroubleOfTheStoreIsToldBeforeAnyWorkAndStoresNothing) {
  store_->Fail(MakeError(absl::StatusCode::kUnavailable, "the profile store cannot be reached",
                         {.reason = "STORE_UNAVAILABLE", .retry_after = seconds(1)}));
  ExpectRefusal(Request(), StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE");
  ExpectGoodCall();
  store_->Fail(absl::OkStatus());
  work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                 const std::stop_token&) {
    store_->Fail(MakeError(absl::StatusCode::kResourceExhausted, "the disk is full",
                           {.reason = "STORE_FULL"}));
    return Made(job);
  };
  const CalibrateOutcome full = Calibrate(Request());
  EXPECT_THAT(full.status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "STORE_FULL"));
  EXPECT_FALSE(full.profile.has_value());
  EXPECT_EQ(StoredVersion("legal"), 0);
  ExpectGoodCall();
}

TEST_F(CalibrateTest, AFullQuotaIsToldBeforeAnyWork) {
  StopServing();
  store_ = std::make_unique<FaultyStore>(ProfileStoreOptions{.quota = {.versions = 1}});
  Serve();
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  const CalibrateOutcome over = Calibrate(Request());
  EXPECT_THAT(over.status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "PROFILE_QUOTA"));
  EXPECT_EQ(over.pushback, "-1") << "do not retry";
  EXPECT_EQ(DetailOf<google::rpc::QuotaFailure>(over.status)->violations(0).subject(), "tenant");
  EXPECT_EQ(runs_, 1);
  StopServing();
  store_ = std::make_unique<FaultyStore>();
  Serve();
}

}  // namespace
}  // namespace eta::testing
