// `etactl calibrate`: sends samples of a domain, shows the progress, and ends with the cost and the
// savings of the stored profile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/attention_settings.h"
#include "eta/v1/calibrate.pb.h"
#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

// The command line. Absent flags stay absent in the request, since the server has the defaults.
struct CalibrateFlags {
  std::string name;
  std::vector<std::string> samples;  // files and folders
  std::vector<std::string> labels;   // "KEY=VALUE"
  std::optional<std::string> target;
  std::optional<std::string> model;

  std::optional<double> held_out, z_recall;
  std::optional<int32_t> sequence_tokens;
  AttentionSettings settings;
  std::optional<double> min_retrieval;
  bool allow_loss = false;

  bool create_only = false;
  std::optional<int64_t> expected_version;
  std::optional<std::string> request_id;
  bool stage = false;
  std::optional<double> deadline_seconds;
  bool json = false;
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddCalibrateCommand(CLI::App& app, CalibrateFlags* flags);

// Parses "match-dynamic", "head-density=0.3", "union-density=0.35", "max-perplexity-increase=1%",
// "dynamic-union-density", "dynamic-union-density=1%" (the sign may be left out) or
// "retained-mass=0.95".
// INVALID_ARGUMENT with a sentence for the user.
absl::StatusOr<v1::CalibrationTarget> ParseTarget(const std::string& text);

// A request, and the origin of each of its samples.
struct CalibrateCall {
  v1::CalibrateRequest request;
  std::vector<std::string> origins;
};

// Reads the samples that the flags name. INVALID_ARGUMENT, with a sentence for the user, if they
// cannot be read or a value is malformed. Values out of range are left to the server to refuse.
absl::StatusOr<CalibrateCall> MakeCalibrateCall(const CalibrateFlags& flags);

// "samples[2] is texts/b.txt": the origin of the sample whose field the server refused. Empty if it
// was not a sample.
std::string DescribeRefusedSample(const std::string& field,
                                  const std::vector<std::string>& origins);

// Returns the exit code of the process.
int RunCalibrate(const ServerFlags& server, const CalibrateFlags& flags);

}  // namespace eta::ctl
