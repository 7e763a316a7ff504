#include "tests/testing/monitoring/live_system.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/format/library/grammar_library.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/http_get.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kMaxContext = 4096;
// Limits that allow all but one call of each round.
constexpr char kTenants[] = R"({
  "tenants": {"bob": {"max_calls": 64, "max_kv_tokens": 100000, "tokens_per_second": 1000000,
                      "burst_tokens": 3900}}
})";
constexpr char kSamples[] = ETA_SOURCE_DIR "/models/eta-27m/samples/books";

// A part of a document. Each `number` gives another part, so that no prompt is in the prefix cache.
std::string Text(int32_t number, size_t bytes) {
  static const auto* const book = new std::string([] {
    std::set<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(kSamples)) files.insert(file);
    std::string text;
    for (const auto& file : files) text += ReadFile(file);
    return text;
  }());
  return book->substr(static_cast<size_t>(number) * 700, bytes);
}

v1::GenerateRequest Short(const std::string& mode, const std::string& profile, int32_t sample) {
  v1::GenerateRequest request = Ask(Text(sample, 2400));
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_stopping()->set_max_tokens(12);
  request.mutable_stopping()->set_ignore_eos(true);
  if (mode == "full") request.mutable_attention()->mutable_full();
  if (mode == "dynamic") {
    request.mutable_attention()->mutable_dynamic();
    request.mutable_attention()->set_confirm(true);
    request.mutable_attention()->set_prefill(v1::PREFILL_SPARSE);
  }
  if (mode == "profile") request.mutable_attention()->set_profile(profile);
  return request;
}

v1::GenerateRequest Endless() {
  v1::GenerateRequest request = Ask("Once");
  request.mutable_stopping()->set_max_tokens(kMaxContext - 100);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_attention()->set_profile("aside");
  request.set_speculation(v1::SPECULATION_OFF);  // nobody is told what became of its drafts
  return request;
}

// The labels of a call that has no finish reason of an answer.
MetricLabels Ended(const std::string& method, const std::string& code, const std::string& tenant) {
  return {{"method", method}, {"code", code}, {"finish_reason", "none"}, {"tenant", tenant}};
}

// The label of a tenant; "other" for names that the server was not told to distinguish.
std::string TenantLabel(const std::string& tenant) {
  return tenant == "alice" || tenant == "bob" || tenant == "aside" ? tenant : "other";
}
std::string ProfileLabel(const std::string& profile) {
  if (profile.empty()) return "none";
  return profile == "hidden" ? "other" : profile;
}

// Flags with which two requests run and two wait, however many come.
std::vector<std::string> ServerFlags(const std::string& store, const std::string& tenants) {
  std::string flags = absl::StrCat(
      "--model=" ETA_SOURCE_DIR
      "/models/eta-27m --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 --kv_pool_bytes=256MiB "
      "--max_running=2 --max_waiting_requests=2 --default_deadline=2s --profile_staleness=1m "
      "--max_context=",
      kMaxContext, " --tenant_header=", kTenantHeader,
      " --admin_tenants=operator --metrics_tenants=alice,bob,aside "
      "--metrics_profiles=legal,books,aside --tenants=",
      tenants, " --profile_store=", store);
  return absl::StrSplit(flags, ' ');
}

}  // namespace

LiveSystem::LiveSystem()
    : server_(ETA_BINARY_DIR "/eta-server", ServerFlags(folder_.path() + "/profiles.db",
                                                        folder_.Write("tenants.json", kTenants))) {
  const std::string url = server_.AwaitLine("metrics on http://127.0.0.1:");
  const std::string address = server_.AwaitAddress();
  if (address.empty() || !absl::SimpleAtoi(url.substr(0, url.find('/')), &metrics_port_)) return;
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  stub_ = v1::EtaService::NewStub(channel);
  profiles_ = v1::ProfileService::NewStub(channel);
  stats_ = v1::EtaService::NewStub(channel);
  auto prometheus = std::make_unique<PrometheusServer>(absl::StrCat("127.0.0.1:", metrics_port_));
  if (prometheus->AwaitReady()) prometheus_ = std::move(prometheus);
}

std::string LiveSystem::ReadPage() const {
  const HttpAnswer answer = HttpGet(metrics_port_, "/metrics");
  EXPECT_EQ(answer.status, 200);
  return answer.body;
}

v1::Stats LiveSystem::AskStats(bool layers, const std::string& tenant) {
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, tenant);
  v1::StatsRequest request;
  request.set_layers(layers);
  v1::Stats stats;
  const grpc::Status status = stats_->Stats(&context, request, &stats);
  EXPECT_TRUE(status.ok()) << status.error_message();
  counts.CountCall(Ended("Stats", "OK", TenantLabel(tenant)));
  return stats;
}

bool LiveSystem::AwaitPage(const std::function<bool(const MetricSamples&)>& condition) const {
  for (const auto end = steady_clock::now() + seconds(30); steady_clock::now() < end;) {
    if (condition(Scrape())) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  ADD_FAILURE() << "the page never said so:\n" << ReadPage();
  return false;
}

bool LiveSystem::Calibrate(const std::string& name, std::optional<double> union_density,
                           v1::Profile* profile) {
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, "alice");
  context.set_deadline(std::chrono::system_clock::now() + seconds(120));
  v1::CalibrateRequest request;
  request.set_name(name);
  for (int32_t i = 0; i < 3; ++i) request.add_samples()->set_text(Text(i, 1200));
  request.set_sequence_tokens(256);
  request.mutable_target()->mutable_match_dynamic();
  request.set_allow_loss(true);  // of noise nothing is known
  if (union_density) request.mutable_target()->set_union_density(*union_density);
  const auto reader = stub_->Calibrate(&context, request);
  v1::CalibrateResponse message;
  while (reader->Read(&message)) {
    if (message.has_profile() && profile != nullptr) *profile = message.profile();
  }
  const grpc::Status status = reader->Finish();
  counts.CountCall(Ended("Calibrate", status.ok() ? "OK" : "FAILED_PRECONDITION", "alice"));
  EXPECT_EQ(ReasonOf(status), status.ok() ? "" : "TARGET_UNREACHABLE") << status.error_message();
  return status.ok();
}

v1::Profile LiveSystem::Import(const std::string& tenant, const std::string& name,
                               const std::string& json) {
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, tenant);
  v1::ImportProfileRequest request;
  request.set_json(json);
  request.set_name(name);
  v1::Profile profile;
  const grpc::Status status = profiles_->ImportProfile(&context, request, &profile);
  EXPECT_TRUE(status.ok()) << status.error_message();
  counts.CountCall(Ended("ImportProfile", "OK", TenantLabel(tenant)));
  return profile;
}

void LiveSystem::MakeProfiles() {
  ASSERT_TRUE(Calibrate("legal", {}, &legal));
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, "alice");
  v1::ExportProfileRequest request;
  request.set_profile("legal");
  v1::ExportProfileResponse exported;
  ASSERT_TRUE(profiles_->ExportProfile(&context, request, &exported).ok());
  counts.CountCall(Ended("ExportProfile", "OK", "alice"));
  books = Import("bob", "books", exported.json());
  Import("aside", "aside", exported.json());
  Import("carol", "hidden", exported.json());
}

void LiveSystem::Answer(const std::string& tenant, const std::string& mode,
                        const std::string& profile, int32_t sample) {
  ClientCall call(*stub_);
  call.context.AddMetadata(kTenantHeader, tenant);
  call.context.set_deadline(std::chrono::system_clock::now() + seconds(120));
  v1::GenerateRequest request = Short(mode, profile, sample);
  // Any text, in a format that only the same prompt has had before.
  if (mode == "full" && HasGrammarLibrary()) {
    request.mutable_format()->set_regex(absl::StrCat("([ -~\\n]|", sample, ")*"));
  }
  call.Start(request);
  call.ReadText();
  const grpc::Status status = call.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  counts.CountAnswer(TenantLabel(tenant), mode, ProfileLabel(profile), call.finished);
}

void LiveSystem::Refusals() {
  const auto refuse = [this](const std::string& tenant, const std::string& label,
                             const v1::GenerateRequest& request, const std::string& code,
                             const std::string& reason) {
    ClientCall call(*stub_);
    if (!tenant.empty()) call.context.AddMetadata(kTenantHeader, tenant);
    EXPECT_FALSE(call.Refusal(request).ok());
    counts.CountRefusal(Ended("Generate", code, label), reason);
  };
  v1::GenerateRequest request = Short("full", "", 0);
  refuse("alice", "alice", Short("profile", "nowhere", 0), "NOT_FOUND", "profile_not_found");
  request.mutable_sampling()->set_top_p(2.0f);
  refuse("bob", "bob", request, "INVALID_ARGUMENT", "invalid_field");
  request = Short("full", "", 0);
  request.set_text(std::string(100000, 'a'));
  refuse("bob", "bob", request, "INVALID_ARGUMENT", "context_too_long");
  request = Ask("Once");
  request.mutable_stopping()->set_max_tokens(3950);
  refuse("bob", "bob", request, "RESOURCE_EXHAUSTED", "tenant_tokens");
  // A call without a known tenant takes no label from the existing tenants.
  refuse("", "none", Short("full", "", 0), "UNAUTHENTICATED", "tenant_required");
  refuse("stranger", "other", Short("profile", "nowhere", 0), "NOT_FOUND", "profile_not_found");
}

void LiveSystem::Cancellations() {
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::make_unique<ClientCall>(*stub_));
    calls.back()->context.AddMetadata(kTenantHeader, "aside");
    calls.back()->context.set_deadline(std::chrono::system_clock::now() + seconds(120));
    calls.back()->Start(Endless());
    // Calls start one after the other, so that the refusals do not depend on the timing of steps.
    AwaitPage([i](const MetricSamples& page) {
      return page.Sum("eta_requests_running") == std::min(i + 1, 2) &&
             page.Sum("eta_requests_waiting") == std::max(i - 1, 0);
    });
    if (i < 2) {
      while (!calls.back()->Read().has_delta()) continue;
    }
  }
  busy.page = Scrape();
  ClientCall one_too_many(*stub_);
  one_too_many.context.AddMetadata(kTenantHeader, "aside");
  EXPECT_EQ(ReasonOf(one_too_many.Refusal(Endless())), "QUEUE_FULL");
  counts.CountRefusal(Ended("Generate", "RESOURCE_EXHAUSTED", "aside"), "queue_full");
  // Waiting calls are cancelled first, so that they do not take a place that becomes free.
  for (const size_t i : {3, 2, 1, 0}) {
    calls[i]->context.TryCancel();
    calls[i]->ReadText();
    EXPECT_EQ(calls[i]->Finish().error_code(), grpc::StatusCode::CANCELLED);
    const double ended = 4.0 * rounds_ + 4.0 - static_cast<double>(i);
    AwaitPage([&](const MetricSamples& page) {
      return page.Sum("eta_requests_cancelled_total") == ended;
    });
  }
}

void LiveSystem::PassDeadline() {
  grpc::ClientContext context;  // no deadline: passes have the server's own
  context.AddMetadata(kTenantHeader, "aside");
  const auto reader = stub_->Generate(&context, Endless());
  v1::GenerateResponse message;
  while (reader->Read(&message)) continue;
  const grpc::Status status = reader->Finish();
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_DECODING"));
}

void LiveSystem::PlayRound() {
  const int32_t first = 20 * rounds_;
  std::thread bob([this, first] {
    Answer("bob", "profile", "books", first);
    Answer("bob", "dynamic", "", first + 1);
    Answer("bob", "profile", "books", first + 2);
  });
  Answer("alice", "profile", "legal", first + 3);
  Answer("alice", "dynamic", "", first + 4);
  Answer("alice", "full", "", first + 5);
  Answer("alice", "full", "", first + 5);  // its prompt is in the prefix cache
  bob.join();
  Answer("carol", "profile", "hidden", first + 6);
  Answer("carol", "full", "", first + 7);
  Refusals();
  Cancellations();
  PassDeadline();
  EXPECT_TRUE(Calibrate("later", {}));
  EXPECT_FALSE(Calibrate("never", 0.01));
  AwaitPage([](const MetricSamples& page) {  // a step of its last passes may still run
    return page.Sum("eta_calibration_passes_running") +
               page.Sum("eta_calibration_passes_waiting") ==
           0;
  });
  ++rounds_;
  busy.rounds = rounds_;
}

}  // namespace eta::testing
