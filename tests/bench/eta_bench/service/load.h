// A load on a running server. Calls start when they are due, however many are still open (open
// loop), or a fixed number at a time (closed loop). It records the result of each call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {

struct LoadOptions {
  std::string address = "localhost:8471";
  std::string tenant_header;  // for calls that name a tenant; empty: none does
  int connections = 8;
  int prompt_tokens = 64;
  int text_bytes = 0;  // random letters instead of token ids; 0: ids
  int max_tokens = 32;
  int min_id = 300;
  int max_id = 8000;
  uint64_t seed = 1;
};
void AddLoadOptions(CLI::App& command, LoadOptions& options);

// Times are in seconds. For a failed call only `total` counts.
struct CallResult {
  double start = 0.0;  // after the beginning of the load
  double total = 0.0;
  double first_token = 0.0;
  std::vector<double> between;  // one per message after the first
  int code = 0;                 // grpc::StatusCode
  std::string error;            // its message
};

struct Stream {
  std::string tenant;
  double rate = 0.0;  // per second, at random times; 0: closed loop
  int at_a_time = 1;  // of a closed loop
};

class LoadGenerator {
 public:
  explicit LoadGenerator(const LoadOptions& options);
  ~LoadGenerator();

  // Fails unless the server takes a call's tenant from --tenant_header.
  void RequireTenants() const;

  // Runs all streams together for `seconds`, then waits for open calls. Returns the results by
  // stream.
  std::vector<std::vector<CallResult>> Run(const std::vector<Stream>& streams, double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  struct Connections;
  class Call;
  struct State;

  // Starts one stream's calls.
  void Drive(State& run, size_t index, const Stream& stream, Clock::time_point end);

  const LoadOptions options_;
  std::unique_ptr<Connections> connections_;
  std::atomic<uint64_t> next_seed_;
};

}  // namespace eta::bench
