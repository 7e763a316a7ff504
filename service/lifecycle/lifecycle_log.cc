#include "service/lifecycle/lifecycle_log.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "service/options/insecure_choices.h"

namespace eta {
namespace {

void LogInsecureChoice(const InsecureChoice& choice, Log& log) {
  log.Write(LogEvent(LogLevel::kWarning, "insecure", choice.flag + ": " + choice.why)
                .Add("flag", choice.flag)
                .Rank(LogRank::kChange));
}

std::string CpusInWords(const UsableCpus& cpus) {
  std::string words = absl::StrCat(cpus.affinity, " CPUs");
  if (cpus.quota) absl::StrAppend(&words, ", by control group the time of ", *cpus.quota);
  return words;
}

}  // namespace

void LogInsecureChoices(const Flags& flags, bool filtered, bool has_failpoints, Log& log) {
  for (const InsecureChoice& choice : InsecureChoices(flags, filtered)) {
    LogInsecureChoice(choice, log);
  }
  if (has_failpoints) {
    LogInsecureChoice(
        {.flag = "ETA_FAILPOINTS", .why = "whoever writes this file may make the server fail"},
        log);
  }
}

void LogStart(const Flags& flags, bool filtered, const UsableCpus& cpus, int step_cpus,
              const EngineInfo& info, Log& log) {
  std::string message = "model " + info.model_name + " (" + info.model_fingerprint.substr(0, 12) +
                        "), " + info.backend + ", KV cache of " + std::to_string(info.num_blocks) +
                        " blocks of " + std::to_string(info.config.block_size) + " tokens in " +
                        std::string(Name(info.kv_dtype)) + ", " + std::string(Name(info.index)) +
                        " records in " + std::string(Name(info.index_dtype)) + "; " +
                        CpusInWords(cpus);
  const int32_t max_context = flags.engine.limits.max_context;
  const int32_t windows = info.config.num_layers - info.config.num_full_layers();
  if (windows > 0) {
    absl::StrAppend(&message, "; ", windows, " of ", info.config.num_layers,
                    " layers see a window of ", info.config.sliding_window, " tokens");
  }
  if (info.left_out_tensors > 0) {
    absl::StrAppend(&message, "; text alone, without ", info.left_out_tensors,
                    " tensors of a vision tower");
  }
  LogEvent event(LogLevel::kInfo, "start", message);
  event.Add("version", ETA_VERSION)
      .Add("model", info.model_name)
      .Add("model_fingerprint", info.model_fingerprint)
      .Add("backend", info.backend)
      .Add("devices", flags.engine.devices.size())
      .Add("weight_bytes", info.weight_bytes)
      .Add("kv_blocks", info.num_blocks)
      .Add("kv_bytes", info.kv_bytes)
      .Add("block_size", info.config.block_size)
      .Add("max_context", max_context)
      .Add("kv_dtype", Name(info.kv_dtype))
      .Add("index", Name(info.index))
      .Add("index_dtype", Name(info.index_dtype))
      .Add("chat", info.chat_refusal.empty())
      .Add("system_calls_filtered", filtered)
      .Add("cpus", cpus.affinity);
  if (cpus.quota) event.Add("cpu_quota", *cpus.quota);
  event.Add("step_cpus", step_cpus).Add("flags", flags.given);
  log.Write(std::move(event));
}

void LogChatTemplate(const EngineInfo& info, Log& log) {
  if (!info.chat_template_refused) return;
  log.Write(LogEvent(LogLevel::kWarning, "no_chat",
                     "chats are refused (CHAT_UNSUPPORTED): " + info.chat_refusal));
}

void LogTooManyThreads(const UsableCpus& cpus, const BackendOptions& backend, Log& log) {
  if (backend.name != "cpu" || backend.num_threads <= cpus.threads()) return;
  log.Write(
      LogEvent(LogLevel::kWarning, "too_many_threads",
               absl::StrCat("--threads: ", backend.num_threads, " compute where ", cpus.threads(),
                            " may at a time: the kernel halts steps in the middle"))
          .Add("threads", backend.num_threads)
          .Add("usable", cpus.threads()));
}

void LogLimits(const absl::Status& status, Log& log) {
  LogEvent event = status.ok()
                       ? LogEvent(LogLevel::kInfo, "reloaded", "--tenants: new limits hold")
                       : LogEvent(LogLevel::kError, "reload_failed",
                                  std::string(status.message()) + "; the limits before it hold");
  log.Write(std::move(event.Add("file", "tenants")));
}

void LogPressure(Pressure level, double used, Log& log) {
  constexpr std::string_view kSentences[kPressures] = {
      "no longer short of memory", "short of memory: calls are refused",
      "out of memory soon: the largest answers are given up"};
  const bool over = level == Pressure::kNone;
  log.Write(LogEvent(over ? LogLevel::kInfo : LogLevel::kWarning,
                     over ? "memory_ok" : "memory_pressure",
                     std::string(kSentences[static_cast<size_t>(level)]))
                .Add("pressure", Name(level))
                .Add("memory_used", used));
}

void LogKvEvents(const std::string& address, const std::string& replay, Log& log) {
  log.Write(LogEvent(LogLevel::kInfo, "kv_events_listening",
                     "events of the prefix cache on " + address +
                         (replay.empty() ? "" : ", and again on " + replay))
                .Add("address", address)
                .Add("replay_address", replay));
}

void LogKvEventTrouble(const absl::Status& why, Log& log) {
  const bool goes_on = absl::IsDataLoss(why);
  log.Write(LogEvent(LogLevel::kWarning, "kv_events_lost",
                     (goes_on ? "readers of the prefix cache's events have missed some: "
                              : "no more events of the prefix cache are published: ") +
                         std::string(why.message())));
}

void LogRemovedVersions(const Tenant& tenant, const std::string& name,
                        const std::vector<int64_t>& versions, Log& log) {
  constexpr size_t kAtOnce = 50;  // a line holds only so much
  for (size_t i = 0; i < versions.size(); i += kAtOnce) {
    const auto begin = versions.begin() + static_cast<ptrdiff_t>(i);
    const auto count = std::min(kAtOnce, versions.size() - i);
    const std::string numbers = absl::StrJoin(begin, begin + static_cast<ptrdiff_t>(count), ",");
    log.Write(LogEvent(LogLevel::kInfo, "versions_removed",
                       "--keep_versions: profile " + name + " lost its versions " + numbers)
                  .Add("tenant", tenant.id())
                  .Add("profile", name)
                  .Add("profile_versions", numbers)
                  .Rank(LogRank::kChange));
  }
}

void LogEnd(Failure failure, Log& log) {
  std::string message = "no device is left";
  if (failure == Failure::kOutOfMemory) message = "a step had no memory on the host";
  if (failure == Failure::kHung) message = "requests run and no step ends";
  log.Write(LogEvent(LogLevel::kError, "exit", message + "; exiting, to be started again"));
}

void LogDrain(const ServerOptions& options, Log& log) {
  const auto patience = options.drain_delay + options.drain_timeout;
  log.Write(LogEvent(LogLevel::kInfo, "drain_begin",
                     "stopping: running calls have up to " +
                         std::to_string(patience.count() / 1000) + " s")
                .Add("drain_delay_ms", options.drain_delay.count())
                .Add("drain_timeout_ms", options.drain_timeout.count()));
}

}  // namespace eta
