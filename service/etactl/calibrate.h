// `etactl calibrate`: sends samples of a domain, shows the progress, ends with what the stored
// profile costs and saves.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eta/v1/calibrate.pb.h"
#include "service/etactl/server.h"

namespace eta::ctl {

// The command line. What is absent stays absent in the request: the server knows the defaults.
struct CalibrateFlags {
  ServerFlags server;
  std::string name;
  std::vector<std::string> samples;  // files and folders
  std::vector<std::string> labels;   // "KEY=VALUE"
  std::string target = "match-dynamic";
  std::optional<std::string> model;

  std::optional<double> held_out, z_recall;
  std::optional<int32_t> sequence_tokens;
  std::optional<float> offset, z;
  std::string floor;  // "none", "uniform"; empty: the model's default

  bool create_only = false;
  std::optional<int64_t> expected_version;
  std::optional<std::string> request_id;
  std::optional<double> deadline_seconds;
  bool json = false;
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddCalibrateCommand(CLI::App& app, CalibrateFlags* flags);

// "match-dynamic", "head-density=0.3", "union-density=0.35", "max-perplexity-increase=1%" (the sign
// may be left out). INVALID_ARGUMENT, with a sentence for the user.
absl::StatusOr<v1::CalibrationTarget> ParseTarget(const std::string& text);

// A request, and where each of its samples came from.
struct CalibrateCall {
  v1::CalibrateRequest request;
  std::vector<std::string> origins;
};

// Reads the samples from where the flags say. INVALID_ARGUMENT, with a sentence for the user, if
// they cannot be read or a value is malformed; values out of range are the server's to refuse.
absl::StatusOr<CalibrateCall> MakeCalibrateCall(const CalibrateFlags& flags);

// "samples[2] is texts/b.txt": the sample whose field the server refused; empty if it was no
// sample.
std::string DescribeRefusedSample(const std::string& field,
                                  const std::vector<std::string>& origins);

// Returns the exit code of the process.
int RunCalibrate(const CalibrateFlags& flags);

}  // namespace eta::ctl
