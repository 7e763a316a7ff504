// eta-bench serve: what the clients of a running server experience: time to the first token, time
// between tokens, tokens per second, at a given number of streams or a given rate of requests; and
// what free answers feel of others that a format binds, and of schemas that are being compiled.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string address = "localhost:8471";
  int streams = 8;
  double rate = 0.0;
  int requests = 64;
  int warm_up = 2;
  int prompt_tokens = 512;
  int max_tokens = 128;
  int min_id = 300;
  int max_id = 8000;
  std::string attention = "default";
  uint64_t seed = 1;
  std::string chats_file;
  std::vector<std::string> chats;  // its lines; the last ones are for the warm-up
  std::string schema_file;         // binds every second answer
  std::string schema;
  std::string compile_file;  // compiled again and again beside the load
  std::string compile;
};

// Whether a schema binds the answer to a request.
bool Binds(const Options& options, uint64_t index) {
  return !options.schema.empty() && index % 2 == 1;
}

constexpr uint64_t kWarmUp = uint64_t{1} << 32;  // index of its first request

// The times of one call, in seconds.
struct Call {
  double first_token = 0.0;
  std::vector<double> between;  // one per token after the first
  int64_t tokens = 0;
  double union_density = -1.0;
  bool bound = false;
  std::string error;
};

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

v1::GenerateRequest MakeRequest(const Options& options, uint64_t index) {
  std::mt19937_64 random(options.seed * 1000003 + index);
  std::uniform_int_distribution<int32_t> id(options.min_id, options.max_id);
  v1::GenerateRequest request;
  if (options.chats.empty()) {
    for (int i = 0; i < options.prompt_tokens; ++i)
      request.mutable_token_ids()->add_ids(id(random));
  } else {
    const size_t size = options.chats.size();
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role(v1::CHAT_ROLE_USER);
    message.set_text(options.chats[index < kWarmUp ? index : size - 1 - (index - kWarmUp)]);
  }
  request.mutable_stopping()->set_max_tokens(options.max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_output()->set_token_ids(true);
  if (options.attention == "full") request.mutable_attention()->mutable_full();
  if (options.attention == "dynamic") request.mutable_attention()->mutable_dynamic();
  if (Binds(options, index)) request.mutable_format()->set_json_schema(options.schema);
  return request;
}

// `begin` is the time at which the request was due, so that waiting for a free stream counts.
Call RunCall(v1::EtaService::Stub& stub, const Options& options, uint64_t index,
             Clock::time_point begin) {
  Call call;
  call.bound = Binds(options, index);
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, MakeRequest(options, index));
  v1::GenerateResponse message;
  Clock::time_point last = begin;
  bool finished = false;
  while (reader->Read(&message)) {
    if (message.has_finished()) {
      finished = true;
      const v1::AttentionStats& stats = message.finished().attention();
      if (stats.has_union_density()) call.union_density = stats.union_density();
    }
    const int tokens = message.has_delta() ? message.delta().token_ids_size() : 0;
    if (tokens == 0) continue;
    const Clock::time_point now = Clock::now();
    const double gap = std::chrono::duration<double>(now - last).count();
    if (call.tokens == 0) call.first_token = gap;
    const int later = call.tokens == 0 ? tokens - 1 : tokens;
    // Tokens that come together share the gap before them.
    const double share = call.tokens == 0 ? 0.0 : gap / later;
    call.between.insert(call.between.end(), static_cast<size_t>(later), share);
    call.tokens += tokens;
    last = now;
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    call.error = absl::StrCat(static_cast<int>(status.error_code()), " ", status.error_message());
  } else if (!finished || (!call.bound && call.tokens != options.max_tokens)) {
    call.error = absl::StrCat("answer of ", call.tokens, " tokens, not ", options.max_tokens);
  }
  return call;
}

// Sends a schema that no request had before, one at a time, until it is destroyed.
class Compilations {
 public:
  explicit Compilations(const Options& options) {
    if (!options.compile.empty()) thread_ = std::thread([this, &options] { Run(options); });
  }
  ~Compilations() { Stop(); }
  Compilations(const Compilations&) = delete;
  Compilations& operator=(const Compilations&) = delete;

  // Seconds from the request to its first token, of each.
  const std::vector<double>& Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return seconds_;
  }
  const std::string& error() const { return error_; }

 private:
  void Run(const Options& options) {
    const auto stub = v1::EtaService::NewStub(
        grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()));
    for (int i = 0; !stopping_ && error_.empty(); ++i) {
      v1::GenerateRequest request = MakeRequest(options, 0);
      Json schema = Json::parse(options.compile);
      schema["description"] = absl::StrCat(options.seed, ".", i);
      request.mutable_format()->set_json_schema(schema.dump());
      request.mutable_stopping()->set_max_tokens(1);
      const Stopwatch stopwatch;
      grpc::ClientContext context;
      const auto reader = stub->Generate(&context, request);
      v1::GenerateResponse message;
      while (reader->Read(&message)) {
      }
      const grpc::Status status = reader->Finish();
      if (!status.ok()) error_ = absl::StrCat("--compile: ", status.error_message());
      seconds_.push_back(stopwatch.seconds());
    }
  }

  std::atomic<bool> stopping_ = false;
  std::vector<double> seconds_;
  std::string error_;
  std::thread thread_;
};

// Requests in the order of their arrival times. A free stream takes the next one.
class Load {
 public:
  Load(const Options& options, int requests, uint64_t first_index)
      : options_(options), requests_(requests), first_index_(first_index) {
    std::mt19937_64 random(options.seed);
    std::exponential_distribution<double> wait(options.rate > 0.0 ? options.rate : 1.0);
    double at = 0.0;
    for (int i = 0; i < requests; ++i) {
      due_.push_back(at);
      if (options.rate > 0.0) at += wait(random);
    }
  }

  std::vector<Call> Run() {
    begin_ = Clock::now();
    std::vector<std::thread> streams;
    for (int i = 0; i < options_.streams; ++i) streams.emplace_back([this] { Serve(); });
    for (std::thread& stream : streams) stream.join();
    seconds_ = Since(begin_);
    return std::move(calls_);
  }
  double seconds() const { return seconds_; }

 private:
  void Serve() {
    // Each stub has a connection of its own, since one connection takes a limited number of calls
    // at a time.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::EtaService::NewStub(
        grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments));
    while (true) {
      size_t index = 0;
      {
        const std::lock_guard lock(mutex_);
        if (next_ == static_cast<size_t>(requests_)) return;
        index = next_++;
      }
      Clock::time_point due = Clock::now();
      if (options_.rate > 0.0) {
        due = begin_ + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(due_[index]));
        std::this_thread::sleep_until(due);
      }
      Call call = RunCall(*stub, options_, first_index_ + index, due);
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
    }
  }

  const Options& options_;
  int requests_;
  uint64_t first_index_;
  std::vector<double> due_;  // seconds after the beginning
  Clock::time_point begin_;
  double seconds_ = 0.0;
  std::mutex mutex_;
  size_t next_ = 0;
  std::vector<Call> calls_;
};

Json Percentiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const auto rank = std::ceil(share * static_cast<double>(values.size()));
    return 1e3 * values[static_cast<size_t>(std::max(1.0, rank)) - 1];
  };
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {{"mean", 1e3 * mean},
          {"p50", at(0.5)},
          {"p90", at(0.9)},
          {"p99", at(0.99)},
          {"max", at(1.0)}};
}

// A question per line.
std::vector<std::string> ReadChats(const Options& options) {
  if (options.chats_file.empty()) return {};
  std::vector<std::string> chats =
      absl::StrSplit(ReadText(options.chats_file), '\n', absl::SkipEmpty());
  const int needed = options.requests + options.warm_up;
  if (static_cast<int>(chats.size()) < needed) {
    Fail(absl::StrCat("--chats: has ", chats.size(), " lines, and --requests with --warm_up need ",
                      needed));
  }
  return chats;
}

Json Run(const Options& options) {
  if (options.min_id > options.max_id) Fail("--min_id: larger than --max_id");
  const Stopwatch setup;
  if (options.warm_up > 0) {
    // Warm-up has prompts of its own, since the measured ones must not be in the prefix cache.
    for (const Call& call : Load(options, options.warm_up, kWarmUp).Run()) {
      if (!call.error.empty()) Fail(call.error);
    }
  }
  const double setup_seconds = setup.seconds();
  Load load(options, options.requests, 0);
  Compilations compilations(options);
  const std::vector<Call> calls = load.Run();
  const std::vector<double>& compiled = compilations.Stop();
  if (!compilations.error().empty()) Fail(compilations.error());
  std::vector<double> first_tokens, between, between_bound;
  int64_t tokens = 0;
  double density = 0.0;
  int with_density = 0;
  for (const Call& call : calls) {
    if (!call.error.empty()) Fail(call.error);
    first_tokens.push_back(call.first_token);
    std::vector<double>& gaps = call.bound ? between_bound : between;
    gaps.insert(gaps.end(), call.between.begin(), call.between.end());
    tokens += call.tokens;
    if (call.union_density < 0.0) continue;
    density += call.union_density;
    ++with_density;
  }
  Json report = {{"bench", "serve"},
                 {"address", options.address},
                 {"streams", options.streams},
                 {"rate", options.rate},
                 {"requests", options.requests},
                 {"prompt_tokens", options.chats.empty() ? Json(options.prompt_tokens) : Json()},
                 {"chats", options.chats_file},
                 {"max_tokens", options.max_tokens},
                 {"attention", options.attention},
                 {"seed", options.seed},
                 {"setup_seconds", setup_seconds},
                 {"seconds", load.seconds()},
                 {"requests_per_s", options.requests / load.seconds()},
                 {"tokens_per_s", static_cast<double>(tokens) / load.seconds()},
                 {"first_token_milliseconds", Percentiles(first_tokens)},
                 {"between_tokens_milliseconds", Percentiles(between)},
                 {"between_bound_tokens_milliseconds", Percentiles(between_bound)},
                 {"compilation_milliseconds", Percentiles(compiled)},
                 {"union_density", nullptr}};
  if (with_density > 0) report["union_density"] = density / with_density;
  return report;
}

void Print(const Json& report) {
  std::printf("%d requests in %.2f s: %.2f requests/s, %.1f tokens/s\n\n",
              report["requests"].get<int>(), report["seconds"].get<double>(),
              report["requests_per_s"].get<double>(), report["tokens_per_s"].get<double>());
  Json rows = Json::array();
  for (const auto& [what, key] :
       {std::pair{"first token", "first_token_milliseconds"},
        std::pair{"between tokens", "between_tokens_milliseconds"},
        std::pair{"of bound answers", "between_bound_tokens_milliseconds"},
        std::pair{"compilations", "compilation_milliseconds"}}) {
    if (report[key].is_null() && rows.size() >= 2) continue;
    Json row = report[key].is_null() ? Json::object() : report[key];
    row["what"] = what;
    rows.push_back(std::move(row));
  }
  PrintTable(rows, {{"milliseconds", "what"},
                    {"mean", "mean", 2},
                    {"p50", "p50", 2},
                    {"p90", "p90", 2},
                    {"p99", "p99", 2},
                    {"max", "max", 2}});
}

}  // namespace

void AddServeCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("serve", "Clients of a running server");
  const auto count = [&](const char* flag, int& value, const char* what, int least, int most) {
    command->add_option(flag, value, what)->check(CLI::Range(least, most))->capture_default_str();
  };
  command->add_option("--address", options->address, "HOST:PORT or unix:PATH")
      ->capture_default_str();
  count("--streams", options->streams, "Requests at a time, at most", 1, 4096);
  command->add_option("--rate", options->rate, "Requests per second, at random; 0: no pause")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  count("--requests", options->requests, "In all", 1, 1 << 20);
  count("--warm_up", options->warm_up, "Requests before the clock starts", 0, 4096);
  count("--prompt_tokens", options->prompt_tokens, "Of every request, at random", 1, 1 << 24);
  count("--max_tokens", options->max_tokens, "Of every answer", 1, 1 << 20);
  count("--min_id", options->min_id, "Least id of a random token", 0, 1 << 20);
  count("--max_id", options->max_id, "Largest id of a random token", 0, 1 << 20);
  command
      ->add_option(
          "--chats", options->chats_file,
          "File of questions, one a line, each sent once as a chat, instead of random tokens")
      ->check(CLI::ExistingFile);
  command
      ->add_option("--schema", options->schema_file,
                   "File of a JSON schema that binds every second answer; times between tokens are "
                   "then of the others")
      ->check(CLI::ExistingFile);
  command
      ->add_option("--compile", options->compile_file,
                   "File of a JSON schema that is compiled anew, again and again, beside the load")
      ->check(CLI::ExistingFile);
  command->add_option("--attention", options->attention)
      ->check(CLI::IsMember({"default", "full", "dynamic"}))
      ->capture_default_str();
  command->add_option("--seed", options->seed)->capture_default_str();
  command->callback([options, &chosen] {
    chosen = {[options] {
                options->chats = ReadChats(*options);
                if (!options->schema_file.empty()) {
                  options->schema = ReadText(options->schema_file);
                }
                if (!options->compile_file.empty()) {
                  options->compile = ReadText(options->compile_file);
                }
                return Run(*options);
              },
              Print};
  });
}

}  // namespace eta::bench
