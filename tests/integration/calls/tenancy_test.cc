// Fifty tenants with the same names at one server, over real sockets. Each gets what it would get
// alone. Nothing of another tenant is in any answer, in Stats, on the page of metrics or in a line
// of the log that is not its own.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "calibration/profiles/store/open_profile_store.h"
#include "engine/front/engine.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "service/calls/records/call_log.h"
#include "service/log/log.h"
#include "service/server/server.h"
#include "service/stats/page/status_collector.h"
#include "service/telemetry/telemetry.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/page_text.h"
#include "tests/testing/profiles/profile_case.h"
#include "tests/testing/service/tenant_client.h"

namespace eta::testing {
namespace {

constexpr int kThreads = 5;  // each plays a fifth of the tenants

// Reads a log while it is written. A line may name one tenant at most, and no secret.
class LogReader {
 public:
  LogReader() {
    EXPECT_EQ(pipe(ends_), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~LogReader() { Join(); }

  int fd() const { return ends_[1]; }
  // Call it once nobody writes any more.
  void Join() {
    if (!thread_.joinable()) return;
    close(ends_[1]);
    thread_.join();
    close(ends_[0]);
  }
  int64_t named() const { return named_; }
  const std::string& offence() const { return offence_; }

 private:
  void Run() {
    FILE* const in = fdopen(dup(ends_[0]), "r");
    char* line = nullptr;
    size_t room = 0;
    for (ssize_t size; (size = getline(&line, &room, in)) > 0;) {
      Look({line, static_cast<size_t>(size)});
    }
    free(line);
    fclose(in);
  }
  void Look(std::string_view line) {
    const int tenant = CanaryIn(line);
    if (tenant >= 0) ++named_;
    const bool secret = line.find(kSecret) != line.npos;
    if (secret || !ForeignCanary(line, tenant).empty()) offence_ = std::string(line);
  }

  int ends_[2] = {-1, -1};
  // Used by the thread until it is joined:
  int64_t named_ = 0;
  std::string offence_;
  std::thread thread_;
};

class TenancyServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log_ = std::make_unique<Log>(LogOptions{.fd = log_reader_.fd(), .max_waiting = 65536});
    call_log_ = std::make_unique<CallLog>(*log_);
    EngineOptions engine_options;
    engine_options.model_dir = model_.path();
    engine_options.backend.num_threads = 1;
    engine_options.kv_pool_bytes = 32 << 20;
    auto engine = Engine::Create(engine_options, &telemetry_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    telemetry_.SetModel(engine_->info(), std::chrono::seconds(1));
    auto store = OpenProfileStore(folder_.path() + "/profiles.db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.tenant_header = kTenantHeader;
    options.max_calibrations = kThreads;
    const TelemetrySource counted = [this](const SnapshotQuery& query) {
      return telemetry_.Snapshot(query);
    };
    auto server = Server::Start(options, {.engine = *engine_,
                                          .profiles = store_.get(),
                                          .calibrate = Calibration(),
                                          .telemetry = counted,
                                          .call_observers = {call_log_.get(), &telemetry_},
                                          .log = log_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    page_.SetServer([this] { return server_->Status(); });
    for (int i = 0; i < kTenants; ++i) {
      if (i % (kTenants / kThreads) == 0) channel_ = NewChannel();
      tenants_.push_back(std::make_unique<TenantClient>(i, channel_, Fitting()));
    }
  }
  void TearDown() override {
    page_.SetServer(nullptr);
    server_.reset();
    call_log_.reset();
    const int64_t dropped = log_ != nullptr ? log_->dropped() : 0;
    log_.reset();
    log_reader_.Join();
    EXPECT_EQ(log_reader_.offence(), "");
    EXPECT_EQ(dropped, 0) << "lines that nobody looked at";
    int64_t operations = 0;
    for (const auto& tenant : tenants_) operations += tenant->counts().operations;
    EXPECT_GT(log_reader_.named(), 0);
    EXPECT_GE(log_reader_.named(), operations) << "each call has a line that names its tenant";
  }

  std::shared_ptr<grpc::Channel> NewChannel() const { return OwnConnection(server_->address()); }
  ProfileContent Fitting() const {
    const EngineInfo& info = engine_->info();
    ProfileContent content = MakeContent(1, info.config.num_layers, info.config.num_query_heads);
    content.model_fingerprint = info.model_fingerprint;
    content.tokenizer_fingerprint = info.tokenizer_fingerprint;
    content.geometry.block_size = info.block_size;
    content.geometry.sub_block = info.sub_block;
    return content;
  }
  // A calibration that ends at once with a profile of the labels it was given.
  Calibrator Calibration() const {
    return [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                  const std::stop_token&) -> absl::StatusOr<CalibrationResult> {
      CalibrationResult result;
      result.content = Fitting();
      result.content.labels = job.labels;
      result.content.target = job.target;
      return result;
    };
  }
  // A series with a tenant as a label belongs to one tenant; secrets are nowhere.
  void CheckPage() {
    const std::string page = PageText(page_.Collect());
    EXPECT_EQ(page.find(kSecret), std::string::npos);
    if (ForeignCanary(page, -1).empty()) return;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_EQ(ForeignCanary(line, CanaryIn(line)), "") << line;
    }
  }

  const TinyModel model_;
  const TempFolder folder_{FastParent()};
  LogReader log_reader_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<CallLog> call_log_;
  Telemetry telemetry_{TelemetryOptions{.label_limit = 64}};
  StatusCollector page_{telemetry_};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ProfileStore> store_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<std::unique_ptr<TenantClient>> tenants_;
};

TEST_F(TenancyServiceTest, EachGetsWhatItWouldGetAlone) {
  const int operations = Rounds(10'000, 1'000'000) / kThreads;
  std::atomic<int> working = kThreads;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      constexpr int kOwn = kTenants / kThreads;
      for (int i = 0; i < operations && !HasFailure(); ++i) {
        tenants_[static_cast<size_t>(thread * kOwn) + random() % kOwn]->Step(random);
      }
      --working;
    });
  }
  int pages = 0;
  for (; working > 0; ++pages) {
    CheckPage();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  const std::string page = PageText(page_.Collect());
  TenancyCounts all;
  for (const auto& tenant : tenants_) {
    EXPECT_NE(page.find(CanaryOf(tenant->number())), page.npos) << "the page names its tenants";
    all.operations += tenant->counts().operations;
    all.generated += tenant->counts().generated;
    all.calibrated += tenant->counts().calibrated;
    all.written += tenant->counts().written;
    all.found += tenant->counts().found;
    all.not_found += tenant->counts().not_found;
    all.refused += tenant->counts().refused;
  }
  // The run did what it set out to do.
  for (const int64_t count : {all.generated, all.calibrated, all.written, all.found, all.not_found,
                              all.refused, int64_t{pages}}) {
    EXPECT_GT(count, 0);
  }
  std::printf(
      "%ld operations in %.0f s: %ld answers, %ld calibrations, %ld other writes, %ld profiles "
      "found, %ld not, %ld times refused another's figures, %d pages of metrics\n",
      all.operations, seconds.count(), all.generated, all.calibrated, all.written, all.found,
      all.not_found, all.refused, pages);
}

// Timing reveals nothing, since no prefix is shared: of two equal prompts of each tenant the first
// is computed and the second is not.
TEST_F(TenancyServiceTest, APromptThatAnotherTenantSentIsComputedAnew) {
  for (const auto& tenant : tenants_) {
    EXPECT_EQ(tenant->CachedOfTheCommonPrompt(), 0) << tenant->number();
    EXPECT_EQ(tenant->OwnStats().cached_tokens(), 0) << tenant->number();
    const int64_t cached = tenant->CachedOfTheCommonPrompt();
    EXPECT_GT(cached, 100) << tenant->number();
    EXPECT_EQ(tenant->OwnStats().cached_tokens(), cached) << tenant->number();
  }
}

}  // namespace
}  // namespace eta::testing
