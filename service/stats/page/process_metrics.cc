// What surrounds the engine: connections, files of the configuration, spans of calls, memory, the
// process.
#include <string_view>

#include "service/stats/page/metric_groups.h"

namespace eta {

void AddConnections(const ServerStatus& status, MetricFamilies& page) {
  const auto single = [&](std::string_view name, int64_t value) {
    page.Begin(name);
    if (status.state) page.Add({}, value);
  };
  const ConnectionUsage& usage = status.connections;
  single("eta_connections_open", usage.open);
  single("eta_connections_max", usage.max);
  single("eta_connections_accepted_total", usage.accepted);
  page.Begin("eta_connections_refused_total");
  if (status.state) {
    page.Add({{"reason", "full"}}, usage.refused_full);
    page.Add({{"reason", "peer"}}, usage.refused_peer);
    page.Add({{"reason", "no_files"}}, usage.refused_no_files);
  }
  single("eta_connection_accept_errors_total", usage.accept_errors);
}

void AddFiles(const ServerStatus& status, MetricFamilies& page) {
  page.Begin("eta_file_reloads_total");
  for (const FileStatus& file : status.files) {
    page.Add({{"file", file.file}, {"result", "success"}}, file.reloads.succeeded);
    page.Add({{"file", file.file}, {"result", "failure"}}, file.reloads.failed);
  }
  page.Begin("eta_file_current");
  for (const FileStatus& file : status.files) {
    page.Add({{"file", file.file}}, file.reloads.current ? 1 : 0);
  }
}

void AddMemory(const ServerStatus& status, MetricFamilies& page) {
  page.Begin("eta_memory_pressure_state");
  for (int level = 0; status.state && level < kPressures; ++level) {
    const auto state = static_cast<Pressure>(level);
    page.Add({{"state", Name(state)}}, status.memory.pressure == state ? 1 : 0);
  }
  page.Begin("eta_memory_streams_ended_total");
  if (status.state) page.Add({}, status.memory.streams_ended);
  page.Begin("eta_answers_cut_off_total");
  if (status.state) page.Add({}, status.answers_cut_off);
  page.Begin("eta_memory_used_ratio");
  if (status.state) page.Add({}, status.memory.used);
}

void AddTraces(const ServerStatus& status, MetricFamilies& page) {
  page.Begin("eta_trace_spans_exported_total");
  if (status.spans) page.Add({}, status.spans->sent);
  page.Begin("eta_trace_spans_dropped_total");
  for (int loss = 0; status.spans && loss < kSpanLosses; ++loss) {
    const auto reason = static_cast<SpanLoss>(loss);
    page.Add({{"reason", Name(reason)}}, status.spans->Of(reason));
  }
}

void AddProcess(const ProcessUsage& process, MetricFamilies& page) {
  page.AddOnly("process_cpu_seconds_total", process.cpu_seconds);
  page.AddOnly("process_resident_memory_bytes", process.resident_bytes);
  page.AddOnly("process_virtual_memory_bytes", process.virtual_bytes);
  page.AddOnly("process_open_fds", process.open_fds);
  page.AddOnly("process_max_fds", process.max_fds);
  page.AddOnly("process_threads", process.threads);
  page.AddOnly("process_start_time_seconds", process.start_time);
}

}  // namespace eta
