// Flags of the server's lifetime and of its connections.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {
namespace {

void AddConnectionFlags(CLI::App& app, ServerOptions& options) {
  AddBytes(app, "--max_message_bytes", options.max_message_bytes,
           "Largest request message, in bytes. Calibrate and ImportProfile have limits of their "
           "own");
  AddCountOrNone(app, "--max_connections", options.max_connections,
                 "Largest number of open connections; more are closed at once. 0 means a quarter "
                 "of the file descriptors that the process may have, at most 4096");
  AddCountOrNone(app, "--max_connections_per_peer", options.max_connections_per_peer,
                 "Largest number of open connections from one IPv4 address or one IPv6 network of "
                 "64 bits. 0 means --max_connections, as is right behind a proxy");
  AddDuration(
      app, "--keepalive_interval", options.keepalive_interval,
      "Time between the pings that find dead clients. A client that leaves one unanswered for "
      "that time, at most 10s, is disconnected");
  AddDuration(
      app, "--max_connection_age", options.max_connection_age,
      "Time after which a connection takes no new calls. Running calls go on, for as long as a "
      "call without a deadline may last");
}

}  // namespace

void AddServerFlags(CLI::App& app, ServerOptions& options) {
  AddShare(app, "--max_memory_fraction", options.memory.max_fraction, 0.99,
           "Share of the memory limit of the process's control group above which calls are refused "
           "with RESOURCE_EXHAUSTED. Where answers are ended too follows from it");
  AddAccessFlags(app, options);
  AddDuration(app, "--drain_delay", options.drain_delay,
              "Time after a stop signal in which readiness fails and new calls are still taken, so "
              "that load balancers notice; 5s on Kubernetes");
  AddDuration(app, "--drain_timeout", options.drain_timeout,
              "Time after --drain_delay that running calls have to end");
  AddDuration(app, "--stall_timeout", options.stall_timeout,
              "Time without the end of a step, while requests run, after which liveness fails; 5 s "
              "later the process ends. It must be longer than --slow_reader_timeout");
  AddCountOrNone(app, "--tokenizer_threads", options.tokenizer_threads,
                 "Threads that make tokens of texts and chats. 0 means half of the CPUs that the "
                 "process may use, 1 to 8");
  AddConnectionFlags(app, options);
}

}  // namespace eta
