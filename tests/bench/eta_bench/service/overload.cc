// eta-bench overload: what a server still does at ten times its capacity. eta-bench fairness: what
// a tenant notices when another one asks for a hundred times its share.
//
//   eta-server --model=models/eta-27m --listen=127.0.0.1:8471 --threads=2 --max_running=4
//     --max_waiting_requests=2 --tenant_header=eta-tenant
//   eta-bench overload --address=127.0.0.1:8471 --tenant_header=eta-tenant
//   eta-bench fairness --address=127.0.0.1:8471 --tenant_header=eta-tenant
//
// A server that must keep its latency has a short queue: a call that waits behind a full batch
// waits for all of it.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <string>
#include <utility>

#include "grpcpp/support/status.h"
#include "tests/bench/eta_bench/service/load.h"
#include "tests/bench/side_process.h"

namespace eta::bench {
namespace {

constexpr char kTenant[] = "tenant-a";  // for a server that requires a tenant

struct Options {
  LoadOptions load;
  double seconds = 10.0;
  std::vector<int> levels = {1, 2, 4, 8, 16};
  double overload = 10.0;
  // For fairness:
  double share = 0.35;  // each tenant's share of the peak
  double excess = 100.0;
};

// The results of a stream's calls, times in milliseconds.
struct Outcome {
  double per_second = 0.0;  // answers that were complete before the load ended
  // Cores that this program used, which it takes from a server on the same machine.
  double load_cores = 0.0;
  std::vector<double> total;
  std::vector<double> first_token;
  std::vector<double> between;
  std::vector<double> refused;
  std::map<int, int64_t> codes;
};

Outcome Judge(const std::vector<CallResult>& results, double seconds) {
  Outcome outcome;
  int64_t in_time = 0;
  for (const CallResult& result : results) {
    ++outcome.codes[result.code];
    if (result.code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      outcome.refused.push_back(1e3 * result.total);
    } else if (result.code == grpc::StatusCode::OK) {
      in_time += result.start + result.total <= seconds ? 1 : 0;
      outcome.total.push_back(1e3 * result.total);
      outcome.first_token.push_back(1e3 * result.first_token);
      for (const double gap : result.between) outcome.between.push_back(1e3 * gap);
    } else {
      Fail("a call ended with code " + std::to_string(result.code) + ": " + result.error);
    }
  }
  outcome.per_second = static_cast<double>(in_time) / seconds;
  return outcome;
}

// Returns the outcomes by stream.
std::vector<Outcome> Offer(LoadGenerator& load, const std::vector<Stream>& streams,
                           double seconds) {
  const std::clock_t begin = std::clock();
  const auto results = load.Run(streams, seconds);
  const double cores = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / seconds;
  std::vector<Outcome> outcomes;
  for (const auto& stream : results) {
    outcomes.push_back(Judge(stream, seconds));
    outcomes.back().load_cores = cores;
  }
  return outcomes;
}

Json Quantiles(const std::vector<double>& values) {
  return {{"p50", Quantile(values, 0.5)},
          {"p90", Quantile(values, 0.9)},
          {"p99", Quantile(values, 0.99)},
          {"max", Quantile(values, 1.0)}};
}

Json Report(const char* what, const Outcome& outcome) {
  Json codes = Json::object();
  for (const auto& [code, count] : outcome.codes) codes[std::to_string(code)] = count;
  return {{"what", what},
          {"answers_per_s", outcome.per_second},
          {"codes", codes},
          {"load_cores", outcome.load_cores},
          {"total_ms", Quantiles(outcome.total)},
          {"first_token_ms", Quantiles(outcome.first_token)},
          {"between_ms", Quantiles(outcome.between)},
          {"refused_ms", Quantiles(outcome.refused)}};
}

struct Peak {
  int streams = 1;
  Outcome alone;  // one call at a time
  Outcome best;
};

// Finds the most answers per second over the number of calls at a time. Refused calls do not count.
Peak FindPeak(LoadGenerator& load, const Options& options, Json& phases) {
  Peak peak;
  (void)load.Run({{.tenant = kTenant, .at_a_time = 2}}, 1.0);  // warm-up
  for (const int level : options.levels) {
    const Outcome outcome =
        Offer(load, {{.tenant = kTenant, .at_a_time = level}}, options.seconds)[0];
    phases.push_back(Report(("closed loop of " + std::to_string(level)).c_str(), outcome));
    if (level == options.levels.front()) peak.alone = outcome;
    if (outcome.per_second > peak.best.per_second) {
      peak.best = outcome;
      peak.streams = level;
    }
    // Beyond the server's places a closed loop only counts refusals.
    if (outcome.refused.size() > outcome.total.size()) break;
  }
  if (peak.best.per_second == 0.0) Fail("the server finished no call");
  return peak;
}

double Change(const std::vector<double>& before, const std::vector<double>& after) {
  return Quantile(after, 0.99) / Quantile(before, 0.99) - 1.0;
}

Json RunOverload(const Options& options) {
  LoadGenerator load(options.load);
  Json phases = Json::array();
  const Peak peak = FindPeak(load, options, phases);
  const double rate = options.overload * peak.best.per_second;
  const Outcome outcome = Offer(load, {{.tenant = kTenant, .rate = rate}}, options.seconds)[0];
  phases.push_back(Report("overload", outcome));
  return {{"bench", "overload"},
          {"prompt_tokens", options.load.prompt_tokens},
          {"max_tokens", options.load.max_tokens},
          {"seconds", options.seconds},
          {"peak_streams", peak.streams},
          {"peak_answers_per_s", peak.best.per_second},
          {"offered_per_s", rate},
          {"answers_per_s", outcome.per_second},
          {"goodput_of_peak", outcome.per_second / peak.best.per_second},
          {"refused_p50_ms", Quantile(outcome.refused, 0.5)},
          {"refused_p99_ms", Quantile(outcome.refused, 0.99)},
          {"admitted_p99_of_unloaded", 1.0 + Change(peak.alone.total, outcome.total)},
          {"admitted_p99_of_peak", 1.0 + Change(peak.best.total, outcome.total)},
          {"phases", phases}};
}

// Offers one tenant's load at the given rate. It runs in a process of its own, so that the cost of
// a flood of refusals to the client that causes it does not affect another tenant's client.
std::string OfferAlone(Options options, const std::string& rate) {
  options.load.seed += 1;  // other prompts
  static LoadGenerator load(options.load);
  const Stream stream = {.tenant = kTenant, .rate = std::stod(rate)};
  return Report("", Offer(load, {stream}, options.seconds)[0]).dump();
}

Json RunFairness(const Options& options) {
  SideProcess other([&](const std::string& rate) { return OfferAlone(options, rate); });
  LoadGenerator load(options.load);
  load.RequireTenants();
  Json phases = Json::array();
  const Peak peak = FindPeak(load, options, phases);
  const double share = options.share * peak.best.per_second;
  const auto run = [&](double excess, const char* a, const char* b) {
    other.Ask(std::to_string(excess * share));
    Outcome outcome = Offer(load, {{.tenant = "tenant-b", .rate = share}}, options.seconds)[0];
    phases.push_back(Json::parse(other.Answer()));
    phases.back()["what"] = a;
    phases.push_back(Report(b, outcome));
    return outcome;
  };
  const Outcome before = run(1.0, "a at its share", "b beside it");
  const Outcome after = run(options.excess, "a at its excess", "b beside that");
  return {{"bench", "fairness"},
          {"prompt_tokens", options.load.prompt_tokens},
          {"max_tokens", options.load.max_tokens},
          {"seconds", options.seconds},
          {"peak_answers_per_s", peak.best.per_second},
          {"share_per_s", share},
          {"excess", options.excess},
          {"first_token_p99_change", Change(before.first_token, after.first_token)},
          {"between_p99_change", Change(before.between, after.between)},
          {"total_p99_change", Change(before.total, after.total)},
          {"refused_of_b", after.refused.size()},
          {"phases", phases}};
}

void Print(const Json& report) {
  Json rows = Json::array();
  for (const Json& phase : report["phases"]) {
    Json row = {{"what", phase["what"]},
                {"answers", phase["answers_per_s"]},
                {"load_cores", phase["load_cores"]}};
    for (const char* key : {"total_ms", "first_token_ms", "between_ms", "refused_ms"}) {
      row[std::string(key) + "50"] = phase[key]["p50"];
      row[std::string(key) + "99"] = phase[key]["p99"];
    }
    rows.push_back(std::move(row));
  }
  PrintTable(rows, {{"milliseconds", "what"},
                    {"answers/s", "answers", 1},
                    {"total p50", "total_ms50", 1},
                    {"p99", "total_ms99", 1},
                    {"first p50", "first_token_ms50", 1},
                    {"p99", "first_token_ms99", 1},
                    {"between p50", "between_ms50", 2},
                    {"p99", "between_ms99", 2},
                    {"refused p50", "refused_ms50", 2},
                    {"p99", "refused_ms99", 2},
                    {"load's cores", "load_cores", 2}});
  std::printf("\n");
  for (const auto& [key, value] : report.items()) {
    if (value.is_number_float()) std::printf("%s: %.4g\n", key.c_str(), value.get<double>());
    if (value.is_number_integer()) std::printf("%s: %s\n", key.c_str(), value.dump().c_str());
  }
}

std::shared_ptr<Options> AddCommand(CLI::App& app, Command& chosen, const char* name,
                                    const char* what, Json (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(name, what);
  AddLoadOptions(*command, options->load);
  command->add_option("--seconds", options->seconds, "Of each phase")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_option("--levels", options->levels, "Calls at a time among which the peak is sought")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->callback([options, run, &chosen] {
    chosen = {[options, run] { return run(*options); }, Print};
  });
  return options;
}

}  // namespace

void AddOverloadCommands(CLI::App& app, Command& chosen) {
  auto overload =
      AddCommand(app, chosen, "overload", "A server offered more than it can do", RunOverload);
  app.get_subcommand("overload")
      ->add_option("--times", overload->overload, "The peak, in requests offered")
      ->check(CLI::Range(0.1, 1000.0))
      ->capture_default_str();
  auto fairness = AddCommand(app, chosen, "fairness", "A tenant beside one that asks for too much",
                             RunFairness);
  CLI::App* command = app.get_subcommand("fairness");
  command->add_option("--share", fairness->share, "Of the peak, asked for by each tenant")
      ->check(CLI::Range(0.01, 0.5))
      ->capture_default_str();
  command->add_option("--excess", fairness->excess, "Times its share that one asks for then")
      ->check(CLI::Range(1.0, 1000.0))
      ->capture_default_str();
}

}  // namespace eta::bench
