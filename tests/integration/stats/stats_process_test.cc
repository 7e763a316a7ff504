// Stats of the shipped server against the counts of its clients: exact, to the last key.
#include <google/protobuf/util/time_util.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using google::protobuf::util::TimeUtil;
using std::chrono::seconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kAnswers = 24;

// The sums over answers.
struct Sums {
  int64_t answers = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  v1::AttentionStats attention;  // densities are summed over steps
};

void Add(const v1::Finished& finished, Sums& sums) {
  ++sums.answers;
  sums.prompt_tokens += finished.usage().prompt_tokens();
  sums.cached_tokens += finished.usage().cached_tokens();
  sums.output_tokens += finished.usage().output_tokens();
  const v1::AttentionStats& from = finished.attention();
  v1::AttentionStats& to = sums.attention;
  const auto steps = static_cast<double>(from.decode_steps());
  to.set_head_density(to.head_density() + from.head_density() * steps);
  to.set_union_density(to.union_density() + from.union_density() * steps);
  to.set_decode_steps(to.decode_steps() + from.decode_steps());
  to.set_keys_attended(to.keys_attended() + from.keys_attended());
  to.set_keys_eligible(to.keys_eligible() + from.keys_eligible());
  to.set_keys_read(to.keys_read() + from.keys_read());
  to.set_keys_cached(to.keys_cached() + from.keys_cached());
  to.set_values_read(to.values_read() + from.values_read());
  to.set_prefill_steps(to.prefill_steps() + from.prefill_steps());
  to.set_prefill_keys_attended(to.prefill_keys_attended() + from.prefill_keys_attended());
  to.set_prefill_keys_eligible(to.prefill_keys_eligible() + from.prefill_keys_eligible());
  to.set_kv_bytes_read(to.kv_bytes_read() + from.kv_bytes_read());
  to.set_kv_bytes_dense(to.kv_bytes_dense() + from.kv_bytes_dense());
  to.set_index_bytes_read(to.index_bytes_read() + from.index_bytes_read());
}

void ExpectSame(const v1::AttentionStats& stats, const v1::AttentionStats& sums,
                const std::string& whose) {
  EXPECT_EQ(stats.decode_steps(), sums.decode_steps()) << whose;
  EXPECT_EQ(stats.keys_attended(), sums.keys_attended()) << whose;
  EXPECT_EQ(stats.keys_eligible(), sums.keys_eligible()) << whose;
  EXPECT_EQ(stats.keys_read(), sums.keys_read()) << whose;
  EXPECT_EQ(stats.keys_cached(), sums.keys_cached()) << whose;
  EXPECT_EQ(stats.values_read(), sums.values_read()) << whose;
  EXPECT_EQ(stats.prefill_steps(), sums.prefill_steps()) << whose;
  EXPECT_EQ(stats.prefill_keys_attended(), sums.prefill_keys_attended()) << whose;
  EXPECT_EQ(stats.prefill_keys_eligible(), sums.prefill_keys_eligible()) << whose;
  EXPECT_EQ(stats.kv_bytes_read(), sums.kv_bytes_read()) << whose;
  EXPECT_EQ(stats.kv_bytes_dense(), sums.kv_bytes_dense()) << whose;
  EXPECT_EQ(stats.index_bytes_read(), sums.index_bytes_read()) << whose;
  const auto steps = static_cast<double>(sums.decode_steps());
  EXPECT_NEAR(stats.head_density() * steps, sums.head_density(), 1e-6) << whose;
  EXPECT_NEAR(stats.union_density() * steps, sums.union_density(), 1e-6) << whose;
}

class StatsProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_.up()) << server_.process().AwaitExit().errors;
    channel_ = grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials());
    stats_ = v1::EtaService::NewStub(channel_);
  }

  void Calibrate(const std::string& name, const std::string& tenant) {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, tenant);
    const auto reader = server_.stub->Calibrate(&context, SmallCalibration(name));
    v1::CalibrateResponse message;
    while (reader->Read(&message)) {
    }
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // Makes one answer and adds it to the sums of its tenant, and of the tenant's with its mode and
  // profile.
  void Ask(const std::string& tenant, const std::string& mode, int prompt_tokens, int max_tokens) {
    v1::GenerateRequest request;
    for (int i = 0; i < prompt_tokens; ++i) {
      request.mutable_token_ids()->add_ids(10 + (i * 37 + prompt_tokens) % 500);
    }
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(prompt_tokens));
    if (mode == "full") {
      request.mutable_attention()->mutable_full();
    } else if (mode == "dynamic") {
      request.mutable_attention()->mutable_dynamic();
    } else {
      request.mutable_attention()->set_profile(mode);
    }
    ClientCall call(*server_.stub);
    call.context.AddMetadata(kTenantHeader, tenant);
    call.Start(request);
    call.ReadText();
    const grpc::Status status = call.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    const std::lock_guard lock(mutex_);
    Add(call.finished, by_tenant_[tenant]);
    Add(call.finished, by_both_[{tenant, mode}]);
  }

  v1::Stats Get(const std::string& tenant, bool layers = false) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    context.AddMetadata(kTenantHeader, tenant);
    v1::StatsRequest request;
    request.set_layers(layers);
    v1::Stats stats;
    const grpc::Status status = stats_->Stats(&context, request, &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }
  // The name that Ask uses.
  static std::string ModeOf(const v1::AttentionSeries& series) {
    if (series.mode() == v1::ATTENTION_MODE_FULL) return "full";
    if (series.mode() == v1::ATTENTION_MODE_DYNAMIC) return "dynamic";
    return series.profile();
  }

  const TinyModel model_;
  const TempFolder folder_;
  Replica server_{model_.path(),
                  folder_.path() + "/profiles.db",
                  {"--tenant_header", kTenantHeader, "--admin_tenants", "ops"}};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stats_;

  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<std::string, Sums> by_tenant_;
  std::map<std::pair<std::string, std::string>, Sums> by_both_;
};

TEST_F(StatsProcessTest, TheSumsOfTheAnswersAreTheFiguresOfStats) {
  Calibrate("legal", "one");
  Calibrate("code", "two");
  const std::vector<std::pair<std::string, std::string>> mixed = {
      {"one", "full"}, {"one", "dynamic"}, {"one", "legal"},
      {"two", "full"}, {"two", "dynamic"}, {"two", "code"}};
  std::atomic<int> next = 0;
  std::vector<std::thread> clients;
  clients.reserve(4);
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int job = next++; job < kAnswers; job = next++) {
        const auto& [tenant, mode] = mixed[static_cast<size_t>(job) % mixed.size()];
        Ask(tenant, mode, 20 + 13 * job, 1 + job % 9);
      }
    });
  }
  for (std::thread& client : clients) client.join();

  const v1::Stats all = Get("ops", /*layers=*/true);
  ASSERT_THAT(all.attention(), SizeIs(by_both_.size()));
  Sums total;
  for (const v1::AttentionSeries& series : all.attention()) {
    const std::string mode = ModeOf(series);
    const Sums& sums_of_answers = by_both_[{series.tenant(), mode}];
    ExpectSame(series.totals(), sums_of_answers.attention, series.tenant() + " " + mode);
    total.prompt_tokens += sums_of_answers.prompt_tokens;
    total.cached_tokens += sums_of_answers.cached_tokens;
    total.output_tokens += sums_of_answers.output_tokens;
    // Layers and heads add up to the same totals.
    ASSERT_THAT(series.layers(), SizeIs(2)) << mode;
    v1::AttentionStats sums;
    for (const v1::LayerAttention& layer : series.layers()) {
      ASSERT_THAT(layer.keys_attended(), SizeIs(4)) << mode;
      ASSERT_THAT(layer.keys_read(), SizeIs(2)) << mode;
      for (const int64_t keys : layer.keys_attended()) {
        EXPECT_LE(keys, layer.keys_eligible()) << mode;
        sums.set_keys_attended(sums.keys_attended() + keys);
      }
      for (const int64_t keys : layer.keys_read()) sums.set_keys_read(sums.keys_read() + keys);
      sums.set_keys_eligible(sums.keys_eligible() + 4 * layer.keys_eligible());
      sums.set_keys_cached(sums.keys_cached() + 2 * layer.keys_eligible());
    }
    EXPECT_EQ(sums.keys_attended(), series.totals().keys_attended()) << mode;
    EXPECT_EQ(sums.keys_eligible(), series.totals().keys_eligible()) << mode;
    EXPECT_EQ(sums.keys_read(), series.totals().keys_read()) << mode;
    EXPECT_EQ(sums.keys_cached(), series.totals().keys_cached()) << mode;
    if (mode == "full") {
      EXPECT_EQ(series.totals().keys_attended(), series.totals().keys_eligible());
      EXPECT_EQ(series.totals().kv_bytes_read(), series.totals().kv_bytes_dense());
    }
    // The calibration was verified, and all that was decoded is recent.
    const bool profiled = series.mode() == v1::ATTENTION_MODE_PROFILE;
    EXPECT_EQ(series.version(), profiled ? 1 : 0) << mode;
    EXPECT_EQ(series.has_calibrated_head_density(), profiled) << mode;
    EXPECT_EQ(series.has_union_density_drift(), profiled) << mode;
    EXPECT_EQ(series.recent().decode_steps(), series.totals().decode_steps()) << mode;
    EXPECT_NEAR(series.recent().union_density(), series.totals().union_density(), 1e-9) << mode;
  }
  EXPECT_EQ(all.load().prompt_tokens(), total.prompt_tokens);
  EXPECT_EQ(all.load().cached_tokens(), total.cached_tokens);
  EXPECT_EQ(all.load().output_tokens(), total.output_tokens);
  EXPECT_EQ(all.profiles_loaded(), 2);
  for (const v1::LatencyStats& latency : all.latencies()) {
    if (latency.window() != v1::LATENCY_WINDOW_TEN_MINUTES) continue;
    const bool inter_token = latency.kind() == v1::LATENCY_KIND_INTER_TOKEN;
    EXPECT_EQ(latency.count(), inter_token ? total.output_tokens - kAnswers : kAnswers)
        << v1::LatencyKind_Name(latency.kind());
    EXPECT_LE(TimeUtil::DurationToNanoseconds(latency.p50()),
              TimeUtil::DurationToNanoseconds(latency.p99()));
  }

  // A tenant sees its own counts and no others.
  for (const std::string tenant : {"one", "two"}) {
    const v1::Stats own = Get(tenant);
    ASSERT_THAT(own.tenants(), SizeIs(1));
    EXPECT_EQ(own.tenants(0).tenant(), tenant);
    EXPECT_EQ(own.tenants(0).output_tokens(), by_tenant_[tenant].output_tokens);
    EXPECT_EQ(own.tenants(0).prompt_tokens(), by_tenant_[tenant].prompt_tokens);
    ExpectSame(own.tenants(0).attention(), by_tenant_[tenant].attention, tenant);
    int64_t answered = 0;
    for (const v1::CallCount& count : own.tenants(0).calls()) {
      if (count.method() == "Generate") answered += count.calls();
    }
    EXPECT_EQ(answered, by_tenant_[tenant].answers);
    EXPECT_THAT(own.attention(), SizeIs(3));
    for (const v1::AttentionSeries& series : own.attention()) {
      ExpectSame(series.totals(), by_both_[{tenant, ModeOf(series)}].attention, tenant);
    }
    EXPECT_THAT(own.profiles(), SizeIs(1));
    EXPECT_THAT(own.latencies(), IsEmpty());
    EXPECT_FALSE(own.has_load());
  }
  EXPECT_THAT(Get("three").attention(), IsEmpty());
}

TEST_F(StatsProcessTest, CallsThatFailAreCountedByCode) {
  ClientCall refused(*server_.stub);
  refused.context.AddMetadata(kTenantHeader, "one");
  Ask("one", "full", 20, 4);
  v1::GenerateRequest request;
  request.set_text("x");
  request.mutable_sampling()->set_top_p(7.0f);
  EXPECT_EQ(refused.Refusal(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const v1::Stats stats = Get("one");
  ASSERT_THAT(stats.tenants(), SizeIs(1));
  std::map<std::string, int64_t> codes;
  for (const v1::CallCount& count : stats.tenants(0).calls()) {
    if (count.method() == "Generate") codes[count.code()] = count.calls();
  }
  EXPECT_EQ(codes, (std::map<std::string, int64_t>{{"INVALID_ARGUMENT", 1}, {"OK", 1}}));
}

}  // namespace
}  // namespace eta::testing
