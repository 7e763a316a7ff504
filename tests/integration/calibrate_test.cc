// A Calibrate call from both ends: the test is the client and the calibration.
#include <algorithm>
#include <functional>
#include <future>
#include <thread>

#include "engine/error.h"
#include "gmock/gmock.h"
#include "tests/integration/service_fixture.h"
#include "tests/testing/error_details.h"
#include "tests/testing/generic_call.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr char kCalibrateMethod[] = "/eta.v1.EtaService/Calibrate";
constexpr char kTenantHeader[] = "x-eta-tenant";

// What came of a call.
struct Outcome {
  std::vector<v1::CalibrationProgress> progress;
  std::optional<v1::Profile> profile;
  grpc::Status status;
  std::string pushback;
};

class CalibrateTest : public ServiceTest {
 protected:
  void SetUp() override {
    store_ = std::make_unique<FaultyStore>();
    calibrate_ = [this](Engine& engine, const CalibrationJob& job,
                        const CalibrationObserver& observer, std::stop_token stop) {
      const auto work = work_;  // a test may set another while this one runs
      ++runs_;
      return work(engine, job, observer, std::move(stop));
    };
    Work();
    Serve();
  }
  void TearDown() override {
    store_->Fail(absl::OkStatus());
    ExpectGoodCalibration();
    StopServing();
  }

  absl::StatusOr<CalibrationResult> Made(const CalibrationJob& job) {
    CalibrationResult result;
    result.content = FittingContent(static_cast<uint32_t>(runs_));
    result.content.labels = job.labels;
    result.content.target = job.target;
    return result;
  }

  static v1::CalibrateRequest Request(const std::string& name = "legal") {
    v1::CalibrateRequest request;
    request.set_name(name);
    request.add_samples()->set_text("Whereas the party of the first part");
    request.mutable_target()->set_union_density(0.35);
    return request;
  }

  Outcome Calibrate(const v1::CalibrateRequest& request, const std::string& tenant = "") {
    grpc::ClientContext context;
    return Calibrate(request, context, tenant);
  }
  Outcome Calibrate(const v1::CalibrateRequest& request, grpc::ClientContext& context,
                    const std::string& tenant = "") {
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    const auto reader = stub_->Calibrate(&context, request);
    Outcome outcome;
    v1::CalibrateResponse message;
    while (reader->Read(&message)) {
      if (message.has_progress()) outcome.progress.push_back(message.progress());
      if (message.has_profile()) outcome.profile = message.profile();
    }
    outcome.status = reader->Finish();
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto found = trailers.find("grpc-retry-pushback-ms"); found != trailers.end()) {
      outcome.pushback = std::string(found->second.data(), found->second.size());
    }
    return outcome;
  }
  std::future<Outcome> CalibrateLater(const v1::CalibrateRequest& request) {
    return std::async(std::launch::async, [this, request] { return Calibrate(request); });
  }
  void ExpectRefusal(const v1::CalibrateRequest& request, StatusCode code,
                     const std::string& reason) {
    const int runs = runs_;
    const Outcome outcome = Calibrate(request);
    EXPECT_EQ(outcome.status.error_code(), code) << outcome.status.error_message();
    EXPECT_EQ(ReasonOf(outcome.status), reason);
    EXPECT_FALSE(outcome.profile.has_value());
    EXPECT_EQ(runs_, runs) << "no work is done";
  }
  void ExpectBadField(const std::function<void(v1::CalibrateRequest&)>& change,
                      const std::string& field) {
    v1::CalibrateRequest request = Request();
    change(request);
    const int runs = runs_;
    const Outcome outcome = Calibrate(request);
    EXPECT_EQ(outcome.status.error_code(), StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(FieldOf(outcome.status), field) << outcome.status.error_message();
    EXPECT_EQ(runs_, runs) << field;
  }
  void ExpectGoodCalibration() {
    Work();
    const Outcome outcome = Calibrate(Request("good-afterwards"), "anybody");
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(outcome.profile.has_value());
  }
  // The newest version there is; 0: none.
  int64_t StoredVersion(const std::string& name, const std::string& tenant = "default") {
    const auto record = store_->others().Get(TenantOf(tenant), name, Newest());
    return record.ok() ? (*record)->version : 0;
  }

  // Runs until Go, or until it is stopped.
  class Gate {
   public:
    void Go() { go_.set_value(); }
    void AwaitStart() { started_.get_future().wait(); }
    bool Pass(const std::stop_token& stop) {
      started_.set_value();
      while (opened_.wait_for(milliseconds(2)) != std::future_status::ready) {
        if (stop.stop_requested()) return false;
      }
      return true;
    }

   private:
    std::promise<void> started_;
    std::promise<void> go_;
    std::future<void> opened_ = go_.get_future();
  };
  // Calibrations succeed, at once or behind a gate.
  void Work() {
    work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                   const std::stop_token&) { return Made(job); };
  }
  void WorkBehind(Gate& gate) {
    work_ = [this, &gate](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                          const std::stop_token& stop) -> absl::StatusOr<CalibrationResult> {
      if (!gate.Pass(stop)) return absl::CancelledError("stopped");
      return Made(job);
    };
  }

  std::function<absl::StatusOr<CalibrationResult>(Engine&, const CalibrationJob&,
                                                  const CalibrationObserver&, std::stop_token)>
      work_;
  std::atomic<int> runs_ = 0;
};

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
  request.add_samples()->mutable_token_ids()->add_ids(7);
  request.set_held_out(0.5);
  request.set_z_recall(0.95);
  request.set_offset(0.25f);
  request.set_z(1.25f);
  request.set_floor(v1::FLOOR_NONE);
  request.set_sequence_tokens(512);
  request.set_request_id("cal-1");
  grpc::ClientContext context;
  const Outcome outcome = Calibrate(request, context);
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
  ASSERT_EQ(job.samples.size(), 2u);
  EXPECT_EQ(job.samples[0], *engine_->Tokenize(request.samples(0).text()));
  EXPECT_THAT(job.samples[1], ElementsAre(7));
  EXPECT_EQ(job.held_out, 0.5);
  EXPECT_EQ(job.target, (ProfileTarget{ProfileTargetKind::kUnionDensity, 0.35}));
  EXPECT_EQ(job.z_recall, 0.95);
  EXPECT_EQ(job.z, 1.25f);
  EXPECT_EQ(job.offset, 0.25f);
  EXPECT_EQ(job.uniform_floor, false);
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
}

TEST_F(CalibrateTest, AProfileIsUsedByNameVersionAndAliasRightAfterItsAnswer) {
  v1::GenerateRequest generate = Ask("hello");
  generate.mutable_attention()->set_profile("legal");
  EXPECT_EQ(ReasonOf(ClientCall(*stub_).Refusal(generate)), "PROFILE_NOT_FOUND");
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  v1::SetProfileAliasRequest alias;
  alias.set_name("legal");
  alias.set_alias("stable");
  alias.set_version(1);
  grpc::ClientContext context;
  v1::SetProfileAliasResponse response;
  ASSERT_TRUE(profile_stub_->SetProfileAlias(&context, alias, &response).ok());

  for (const auto& [reference, version] :
       {std::pair{"legal", 2}, std::pair{"legal@1", 1}, std::pair{"legal@stable", 1}}) {
    generate.mutable_attention()->set_profile(reference);
    ClientCall client(*stub_);
    client.Start(generate);
    const auto call = engine_->TakeCall();
    ASSERT_NE(call, nullptr);
    const auto record =
        store_->others().Get(TenantOf("default"), "legal", ProfileSelector(int64_t{version}));
    EXPECT_THAT(call->request().attention.profile->thresholds,
                ElementsAreArray((*record)->content.thresholds));
    call->Start();
    const v1::AttentionUsed used = client.Read().started().attention();
    EXPECT_EQ(used.mode(), v1::ATTENTION_MODE_PROFILE);
    EXPECT_EQ(used.profile(), "legal");
    EXPECT_EQ(used.profile_version(), version);
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
  }
  for (const std::string reference : {"legal@3", "legal@next", "code"}) {
    generate.mutable_attention()->set_profile(reference);
    const grpc::Status status = ClientCall(*stub_).Refusal(generate);
    EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
    EXPECT_EQ(ReasonOf(status), "PROFILE_NOT_FOUND");
    EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status)->resource_name(), reference);
  }
  for (const std::string reference :
       {"legal@", "legal@0", "legal@-1", "legal@../x", "@1", "a@b@c"}) {
    generate.mutable_attention()->set_profile(reference);
    EXPECT_EQ(FieldOf(ClientCall(*stub_).Refusal(generate)), "attention.profile") << reference;
  }
}

TEST_F(CalibrateTest, ARequestWithoutAModeTakesItsTenantsDefaultProfile) {
  ServerOptions options;
  options.default_profile = "default@stable";
  Serve(options);
  const auto mode_of = [&](const v1::GenerateRequest& request) {
    ClientCall client(*stub_);
    client.Start(request);
    const auto call = engine_->TakeCall();
    call->Start();
    const v1::AttentionUsed used = client.Read().started().attention();
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    return used.mode();
  };
  EXPECT_EQ(mode_of(Ask("hello")), v1::ATTENTION_MODE_DYNAMIC) << "the tenant has none";
  ASSERT_TRUE(Calibrate(Request("default")).status.ok());
  v1::SetProfileAliasRequest alias;
  alias.set_name("default");
  alias.set_alias("stable");
  alias.set_version(1);
  grpc::ClientContext context;
  v1::SetProfileAliasResponse response;
  ASSERT_TRUE(profile_stub_->SetProfileAlias(&context, alias, &response).ok());
  EXPECT_EQ(mode_of(Ask("hello")), v1::ATTENTION_MODE_PROFILE);
  v1::GenerateRequest full = Ask("hello");
  full.mutable_attention()->mutable_full();
  EXPECT_EQ(mode_of(full), v1::ATTENTION_MODE_FULL);
}

TEST_F(CalibrateTest, TheSameRequestIdIsOneCalibration) {
  v1::CalibrateRequest request = Request();
  request.set_request_id("once");
  const Outcome first = Calibrate(request);
  ASSERT_TRUE(first.status.ok());
  const Outcome again = Calibrate(request);
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

TEST_F(CalibrateTest, ARequestIdThatRunsIsNotRunTwice) {
  Gate gate;
  WorkBehind(gate);
  v1::CalibrateRequest request = Request();
  request.set_request_id("once");
  auto first = CalibrateLater(request);
  gate.AwaitStart();
  const Outcome second = Calibrate(request);
  EXPECT_EQ(second.status.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(second.status), "REQUEST_IN_PROGRESS");
  EXPECT_NE(second.pushback, "");
  gate.Go();
  EXPECT_TRUE(first.get().status.ok());
  EXPECT_TRUE(Calibrate(request).status.ok());
  EXPECT_EQ(runs_, 1);
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
  const Outcome failed = Calibrate(request);
  EXPECT_EQ(failed.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(failed.status), "TARGET_UNREACHABLE");
  EXPECT_EQ(MetadataOf(failed.status, "nearest"), "0.41");
  EXPECT_EQ(StoredVersion("legal"), 0);
  Work();
  request.mutable_target()->set_union_density(0.5);
  EXPECT_TRUE(Calibrate(request).status.ok());
}

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

TEST_F(CalibrateTest, OfTwoAtOnceForOneVersionOneWins) {
  ServerOptions options;
  options.max_calibrations = 2;
  Serve(options);
  std::promise<void> both;
  std::shared_future<void> go = both.get_future().share();
  work_ = [&, go](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                  const std::stop_token&) {
    go.wait();
    return Made(job);
  };
  v1::CalibrateRequest request = Request();
  request.set_expected_version(0);
  auto first = CalibrateLater(request);
  auto second = CalibrateLater(request);
  while (runs_ < 2) std::this_thread::sleep_for(milliseconds(1));
  both.set_value();
  std::vector<grpc::Status> statuses = {first.get().status, second.get().status};
  std::sort(statuses.begin(), statuses.end(),
            [](const auto& a, const auto& b) { return a.error_code() < b.error_code(); });
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(ReasonOf(statuses[1]), "PROFILE_EXISTS");
  EXPECT_EQ(StoredVersion("legal"), 1);
}

TEST_F(CalibrateTest, MoreThanMayRunAreRefusedUntilOneEnds) {
  Gate gate;
  WorkBehind(gate);
  auto first = CalibrateLater(Request());
  gate.AwaitStart();
  const Outcome refused = Calibrate(Request("code"));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(refused.status), "CALIBRATION_BUSY");
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(refused.status).has_value());
  EXPECT_TRUE(DetailOf<google::rpc::QuotaFailure>(refused.status).has_value());
  ExpectGoodCall();  // requests are served meanwhile
  gate.Go();
  EXPECT_TRUE(first.get().status.ok());
  ExpectGoodCalibration();
}

TEST_F(CalibrateTest, ACancelledCalibrationStoresNothing) {
  Gate gate;
  WorkBehind(gate);
  grpc::ClientContext context;
  const auto reader = stub_->Calibrate(&context, Request());
  gate.AwaitStart();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  Work();
  // Its place is free once it has stopped.
  grpc::Status status;
  do {
    status = Calibrate(Request("code")).status;
  } while (ReasonOf(status) == "CALIBRATION_BUSY");
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(CalibrateTest, ACallWithoutADeadlineGetsTheServers) {
  ServerOptions options;
  options.default_calibrate_deadline = milliseconds(50);
  Serve(options);
  Gate gate;
  WorkBehind(gate);
  grpc::ClientContext context;
  const auto reader = stub_->Calibrate(&context, Request());
  v1::CalibrateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(status), "DEADLINE_DECODING");
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

class ProbeEnd final : public ProbeSink {
 public:
  void OnProgress(int32_t) override {}
  void OnEnded(absl::StatusOr<ProbeOutcome> outcome) override {
    ended_.set_value(std::move(outcome));
  }
  absl::StatusOr<ProbeOutcome> Wait() { return ended_.get_future().get(); }

 private:
  std::promise<absl::StatusOr<ProbeOutcome>> ended_;
};

TEST_F(CalibrateTest, DrainingEndsACalibrationAndStoresNothing) {
  work_ = [](Engine& engine, const CalibrationJob& job, const CalibrationObserver&,
             const std::stop_token&) -> absl::StatusOr<CalibrationResult> {
    const auto sink = std::make_shared<ProbeEnd>();
    const auto handle =
        engine.SubmitProbe({.id = job.id, .tenant = job.tenant, .tokens = {1, 2, 3}}, sink);
    if (!handle.ok()) return handle.status();
    return sink->Wait().status();
  };
  auto call = CalibrateLater(Request());
  ASSERT_NE(engine_->TakeProbe(), nullptr);
  server_->Drain();
  const grpc::Status status = call.get().status;
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

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
  ExpectBadField([](R& r) { r.clear_target(); }, "target");
  ExpectBadField([](R& r) { r.mutable_target()->clear_target(); }, "target");
  for (const double value : {0.0, -0.1, 1.01, nan}) {
    ExpectBadField([&](R& r) { r.mutable_target()->set_head_density(value); },
                   "target.head_density");
    ExpectBadField([&](R& r) { r.mutable_target()->set_union_density(value); },
                   "target.union_density");
    ExpectBadField([&](R& r) { r.set_z_recall(value); }, "z_recall");
  }
  for (const double value : {-1.0, 1001.0, nan}) {
    ExpectBadField([&](R& r) { r.mutable_target()->set_max_perplexity_increase(value); },
                   "target.max_perplexity_increase");
  }
  for (const double value : {-101.0, 101.0, nan, infinity}) {
    ExpectBadField([&](R& r) { r.set_offset(static_cast<float>(value)); }, "offset");
  }
  for (const double value : {-0.5, 16.5, nan}) {
    ExpectBadField([&](R& r) { r.set_z(static_cast<float>(value)); }, "z");
  }
  ExpectBadField([](R& r) { r.set_floor(static_cast<v1::Floor>(9)); }, "floor");
  for (const int tokens : {-1, 0, 65'536}) {
    ExpectBadField([&](R& r) { r.set_sequence_tokens(tokens); }, "sequence_tokens");
  }
  ExpectBadField([](R& r) { r.set_expected_version(-1); }, "expected_version");
  ExpectBadField([](R& r) { r.set_request_id(std::string(65, 'x')); }, "request_id");
  ExpectBadField([](R& r) { r.set_request_id("a\nb"); }, "request_id");

  v1::CalibrateRequest request = Request();
  request.set_model("another");
  ExpectRefusal(request, StatusCode::NOT_FOUND, "MODEL_NOT_FOUND");
}

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

TEST_F(CalibrateTest, MessagesAreHeldAgainstTheLimitOfTheirMethod) {
  const auto exchange = [this](const char* method, size_t bytes) {
    return GenericCall(channel_, method).Exchange(std::string(bytes, 'x'));
  };
  constexpr size_t kMiB = 1 << 20;
  grpc::Status status = exchange(kGenerateMethod, kMiB + 1);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(status), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(MetadataOf(status, "limit"), std::to_string(kMiB));
  EXPECT_EQ(exchange(kCalibrateMethod, 8 * kMiB + 1).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  status = exchange("/eta.v1.ProfileService/ImportProfile", 5 * kMiB + 1);
  EXPECT_EQ(ReasonOf(status), "MESSAGE_TOO_LARGE");
  status = exchange("/eta.v1.ProfileService/GetProfile", kMiB + 1);
  EXPECT_EQ(ReasonOf(status), "MESSAGE_TOO_LARGE");
  status = GenericCall(channel_, kCalibrateMethod).Exchange("\xff\xff\xff\xff");
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "MALFORMED_MESSAGE");
  EXPECT_EQ(runs_, 0);
}

TEST_F(CalibrateTest, AServerWithoutAStoreSaysSo) {
  const auto store = std::move(store_);
  Serve();
  const Outcome outcome = Calibrate(Request());
  EXPECT_EQ(outcome.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(outcome.status), "STORE_NOT_CONFIGURED");
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
  const Outcome full = Calibrate(Request());
  EXPECT_EQ(full.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(full.status), "STORE_FULL");
  EXPECT_FALSE(full.profile.has_value());
  EXPECT_EQ(StoredVersion("legal"), 0);
  ExpectGoodCall();
}

TEST_F(CalibrateTest, AFullQuotaIsToldBeforeAnyWork) {
  StopServing();
  store_ = std::make_unique<FaultyStore>(ProfileStoreOptions{.quota = {.versions = 1}});
  Serve();
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  const Outcome over = Calibrate(Request());
  EXPECT_EQ(over.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(over.status), "PROFILE_QUOTA");
  EXPECT_EQ(over.pushback, "-1") << "do not retry";
  EXPECT_EQ(DetailOf<google::rpc::QuotaFailure>(over.status)->violations(0).subject(), "tenant");
  EXPECT_EQ(runs_, 1);
  StopServing();
  store_ = std::make_unique<FaultyStore>();
  Serve();
}

TEST_F(CalibrateTest, TenantsAreNamedByAHeaderAndSeeTheirOwn) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  Serve(options);
  ASSERT_TRUE(Calibrate(Request(), "acme").status.ok());
  EXPECT_EQ(StoredVersion("legal", "acme"), 1);
  const auto generate = [this](const std::string& profile, const std::string& tenant) {
    v1::GenerateRequest request = Ask("hello");
    request.mutable_attention()->set_profile(profile);
    ClientCall client(*stub_);
    if (!tenant.empty()) client.context.AddMetadata(kTenantHeader, tenant);
    return client.Refusal(request);
  };
  const grpc::Status foreign = generate("legal", "other");
  const grpc::Status unknown = generate("legal", "nobody");
  EXPECT_EQ(foreign.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(foreign.error_message(), unknown.error_message());
  EXPECT_EQ(foreign.error_details(), unknown.error_details());

  for (const std::string& bad : {std::string(), std::string("two words"), std::string(256, 'x')}) {
    const grpc::Status status = generate("legal", bad);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(ReasonOf(status), "TENANT_REQUIRED");
  }
  ClientCall twice(*stub_);
  twice.context.AddMetadata(kTenantHeader, "acme");
  twice.context.AddMetadata(kTenantHeader, "other");
  EXPECT_EQ(ReasonOf(twice.Refusal(Ask("hello"))), "TENANT_REQUIRED");

  ClientCall own(*stub_);
  own.context.AddMetadata(kTenantHeader, "acme");
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  own.Start(request);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().tenant, "acme");
  call->Start();
  call->Finish();
  own.ReadText();
  EXPECT_TRUE(own.Finish().ok());
}

TEST_F(CalibrateTest, GenerateGoesOnWithAStoreThatIsDown) {
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  store_->Fail(MakeError(absl::StatusCode::kUnavailable, "the profile store cannot be reached",
                         {.reason = "STORE_UNAVAILABLE", .retry_after = seconds(1)}));
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  call->Start();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
  request.mutable_attention()->set_profile("never-loaded");
  const grpc::Status status = ClientCall(*stub_).Refusal(request);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "STORE_UNAVAILABLE");
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
}

TEST_F(CalibrateTest, ACallThatWaitsForTheStoreCanBeCancelledAndDrained) {
  store_->Block();
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  ClientCall left(*stub_);
  left.Start(request);
  left.context.TryCancel();
  EXPECT_EQ(left.Finish().error_code(), StatusCode::CANCELLED);
  ClientCall waits(*stub_);
  waits.Start(request);
  while (store_->waiting() == 0) std::this_thread::sleep_for(milliseconds(1));
  std::thread stop([this] { server_.reset(); });
  const grpc::Status status = waits.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  store_->Release();
  stop.join();
  Serve();
}

}  // namespace
}  // namespace eta::testing
