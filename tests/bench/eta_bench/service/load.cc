#include "tests/bench/eta_bench/service/load.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace eta::bench {
namespace {

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::chrono::steady_clock::duration After(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

v1::GenerateRequest MakeRequest(const LoadOptions& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> id(options.min_id, options.max_id);
  v1::GenerateRequest request;
  if (options.text_bytes > 0) {
    std::uniform_int_distribution<int> letter('a', 'z');
    std::string& text = *request.mutable_text();
    for (int i = 0; i < options.text_bytes; ++i) text += static_cast<char>(letter(random));
  }
  for (int i = 0; options.text_bytes == 0 && i < options.prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(id(random));
  }
  request.mutable_stopping()->set_max_tokens(options.max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_output()->set_token_ids(true);
  return request;
}

}  // namespace

struct LoadGenerator::Connections {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::unique_ptr<v1::EtaService::Stub>> stubs;
};

// The state that the calls of one run share.
struct LoadGenerator::State {
  std::mutex mutex;
  std::condition_variable changed;
  Clock::time_point begin;
  std::vector<std::vector<CallResult>> results;
  std::vector<int> open;
  int all_open = 0;
};

// One call; it deletes itself.
class LoadGenerator::Call final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(State& run, size_t stream, v1::GenerateRequest request)
      : run_(run), stream_(stream), request_(std::move(request)) {}

  void Start(v1::EtaService::Stub& stub, const std::string& header, const std::string& tenant) {
    if (!header.empty() && !tenant.empty()) context_.AddMetadata(header, tenant);
    begin_ = last_ = Clock::now();
    result_.start = Seconds(begin_ - run_.begin);
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&message_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (message_.has_delta() && message_.delta().token_ids_size() > 0) {
      const Clock::time_point now = Clock::now();
      if (result_.first_token == 0.0) {
        result_.first_token = Seconds(now - begin_);
      } else {
        result_.between.push_back(Seconds(now - last_));
      }
      last_ = now;
    }
    StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override {
    result_.total = Seconds(Clock::now() - begin_);
    result_.code = status.error_code();
    result_.error = status.error_message();
    // The call holds its channel. It must be deleted before Run() returns and the channels are.
    State& run = run_;
    const size_t stream = stream_;
    CallResult result = std::move(result_);
    delete this;
    const std::lock_guard lock(run.mutex);
    run.results[stream].push_back(std::move(result));
    --run.open[stream];
    --run.all_open;
    run.changed.notify_all();
  }

 private:
  State& run_;
  const size_t stream_;
  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  Clock::time_point begin_;
  Clock::time_point last_;
  CallResult result_;
};

LoadGenerator::LoadGenerator(const LoadOptions& options)
    : options_(options),
      connections_(std::make_unique<Connections>()),
      next_seed_(options.seed << 32) {
  for (int i = 0; i < options.connections; ++i) {
    // Each stub has a connection of its own, since one connection takes a limited number of calls
    // at a time.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10))) {
      Fail("no connection to " + options.address);
    }
    connections_->channels.push_back(channel);
    connections_->stubs.push_back(v1::EtaService::NewStub(channel));
  }
}

LoadGenerator::~LoadGenerator() = default;

// A server with tenants shows each one only its own counts and reports this.
void LoadGenerator::RequireTenants() const {
  const std::string& header = options_.tenant_header;
  if (header.empty()) Fail("--tenant_header: which key names the tenant?");
  constexpr char kTenant[] = "tenant-of-nobody";
  grpc::ClientContext context;
  context.AddMetadata(header, kTenant);
  v1::Stats stats;
  const auto stub = v1::EtaService::NewStub(connections_->channels.front());
  const grpc::Status status = stub->Stats(&context, {}, &stats);
  if (!status.ok()) Fail("the server refuses Stats: " + status.error_message());
  if (stats.tenant() != kTenant) {
    Fail("the server does not tell tenants apart: start it with --tenant_header=" + header);
  }
}

// Runs in a thread of its own: a stream that asks for more than this program can send must not
// delay the calls of the others.
void LoadGenerator::Drive(State& run, size_t index, const Stream& stream, Clock::time_point end) {
  std::mt19937_64 random(next_seed_++);
  std::exponential_distribution<double> wait(std::max(stream.rate, 1e-9));
  Clock::time_point due = run.begin;
  // Calls on one connection also share its thread at the server.
  size_t next_stub = index;
  const auto await = [&] {  // false: the load has ended
    if (stream.rate > 0.0) {
      std::this_thread::sleep_until(std::min(due, end));
      due += After(wait(random));
      return true;
    }
    std::unique_lock lock(run.mutex);
    return run.changed.wait_until(lock, end, [&] { return run.open[index] < stream.at_a_time; });
  };
  while (await() && Clock::now() < end) {
    {
      const std::lock_guard lock(run.mutex);
      ++run.open[index];
      ++run.all_open;
    }
    auto* call = new Call(run, index, MakeRequest(options_, next_seed_++));  // deletes itself
    auto& stub = *connections_->stubs[next_stub % connections_->stubs.size()];
    next_stub += run.open.size();
    call->Start(stub, options_.tenant_header, stream.tenant);
  }
}

std::vector<std::vector<CallResult>> LoadGenerator::Run(const std::vector<Stream>& streams,
                                                        double seconds) {
  State run;
  run.results.resize(streams.size());
  run.open.resize(streams.size());
  run.begin = Clock::now();
  const Clock::time_point end = run.begin + After(seconds);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < streams.size(); ++i) {
    threads.emplace_back([&, i] { Drive(run, i, streams[i], end); });
  }
  for (std::thread& thread : threads) thread.join();
  std::unique_lock lock(run.mutex);
  run.changed.wait(lock, [&] { return run.all_open == 0; });
  return std::move(run.results);
}

void AddLoadOptions(CLI::App& command, LoadOptions& options) {
  const auto count = [&](const char* flag, int& value, const char* what, int least, int most) {
    command.add_option(flag, value, what)->check(CLI::Range(least, most))->capture_default_str();
  };
  command.add_option("--address", options.address, "HOST:PORT or unix:PATH")->capture_default_str();
  count("--connections", options.connections, "Each takes a limited number of calls", 1, 64);
  count("--prompt_tokens", options.prompt_tokens, "Of every request, at random", 1, 1 << 20);
  count("--max_tokens", options.max_tokens, "Of every answer", 2, 1 << 20);
  count("--min_id", options.min_id, "Least id of a random token", 0, 1 << 20);
  count("--max_id", options.max_id, "Largest id of a random token", 0, 1 << 20);
  command.add_option("--tenant_header", options.tenant_header,
                     "Metadata key that names the tenant, as the server's --tenant_header");
  command.add_option("--seed", options.seed)->capture_default_str();
}

}  // namespace eta::bench
