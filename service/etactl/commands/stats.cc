#include "service/etactl/commands/stats.h"

#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "eta/v1/service.grpc.pb.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/json.h"
#include "service/etactl/view/stats_text.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
namespace {

using google::protobuf::util::TimeUtil;

// One snapshot after another: on a terminal over the one before it, elsewhere below it.
class Display {
 public:
  explicit Display(const StatsFlags& flags)
      : json_(flags.json), over_(flags.watch && IsTerminal(STDOUT_FILENO)) {}

  // False if standard output cannot be written to.
  bool Show(const v1::Stats& stats) {
    if (json_) return Print(JsonLine(stats));
    std::string text = DescribeStats(stats, last_ ? &*last_ : nullptr);
    const bool written = Print(over_ ? InPlaceOf(shown_, text) : (last_ ? "\n" : "") + text);
    last_ = stats;
    shown_ = std::move(text);
    return written;
  }

 private:
  static bool Print(const std::string& text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
           std::fflush(stdout) == 0;
  }

  const bool json_;
  const bool over_;
  std::optional<v1::Stats> last_;
  std::string shown_;
};

int CannotWrite() {
  std::fprintf(stderr, "etactl: cannot write to standard output\n");
  return kLocalError;
}

int Watch(const ServerFlags& server, const StatsFlags& flags) {
  grpc::ClientContext context;
  CancelOnInterrupt interrupt(&context);
  const auto stub = v1::EtaService::NewStub(Connect(server));
  v1::WatchStatsRequest request;
  request.set_layers(flags.layers);
  if (flags.tenant) request.set_tenant(*flags.tenant);
  if (flags.interval_seconds) {
    *request.mutable_interval() =
        TimeUtil::MicrosecondsToDuration(std::llround(*flags.interval_seconds * 1e6));
  }
  const auto reader = stub->WatchStats(&context, request);
  Display display(flags);
  v1::Stats stats;
  bool written = true;
  while (reader->Read(&stats)) {
    if (written && !display.Show(stats)) {
      written = false;
      context.TryCancel();
    }
  }
  const grpc::Status status = reader->Finish();
  if (interrupt.happened()) return kInterrupted;
  return written ? Report(status, flags.json) : CannotWrite();
}

int ShowOnce(const ServerFlags& server, const StatsFlags& flags) {
  grpc::ClientContext context;
  SetDeadline(flags.timeout_seconds, &context);
  CancelOnInterrupt interrupt(&context);
  const auto stub = v1::EtaService::NewStub(Connect(server));
  v1::StatsRequest request;
  request.set_layers(flags.layers);
  if (flags.tenant) request.set_tenant(*flags.tenant);
  v1::Stats stats;
  const grpc::Status status = stub->Stats(&context, request, &stats);
  if (!status.ok() && interrupt.happened()) return kInterrupted;
  if (!status.ok()) return Report(status, flags.json);
  return Display(flags).Show(stats) ? kOk : CannotWrite();
}

}  // namespace

CLI::App* AddStatsCommand(CLI::App& app, StatsFlags* flags) {
  CLI::App* command =
      app.add_subcommand("stats", "What the server does, how fast, and how sparsely it attends");
  command
      ->add_option("--timeout", flags->timeout_seconds,
                   "Seconds to wait for the answer, without --watch")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  CLI::Option* watch = command->add_flag(
      "--watch", flags->watch,
      "Go on until Ctrl-C; on a terminal each snapshot replaces the one before it");
  command
      ->add_option("--interval", flags->interval_seconds,
                   "Seconds between two snapshots, 0.1 to 60; default 1")
      ->needs(watch)
      ->check(CLI::Range(0.001, 1e6));
  command->add_flag("--layers", flags->layers, "Densities of every layer");
  command->add_option("--tenant", flags->tenant,
                      "Only this tenant's figures; others' are the operator's to see");
  command->add_flag("--json", flags->json, "Every snapshot as one JSON object per line");
  return command;
}

int RunStats(const ServerFlags& server, const StatsFlags& flags) {
  return flags.watch ? Watch(server, flags) : ShowOnce(server, flags);
}

}  // namespace eta::ctl
