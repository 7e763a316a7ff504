// eta_import.json: which model a folder was written from without a change to its weights, so that
// profiles of that model stay good. It says so of the files that it names by their digests, and of
// no others: a folder whose weights were changed since is a model of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

inline constexpr char kImportRecordFile[] = "eta_import.json";

// SHA-256 of what a model's numbers are in, each 64 lower-case hexadecimal digits.
struct WeightsDigests {
  std::vector<std::string> weights;  // sorted, at least one
  std::string index_metric;          // empty: there is none beside the weights
  friend bool operator==(const WeightsDigests&, const WeightsDigests&) = default;
};

struct ImportRecord {
  WeightsDigests read;     // of the model that was read
  WeightsDigests written;  // of the folder's files
};

std::string ImportRecordToJson(const ImportRecord& record);
// INVALID_ARGUMENT, naming the field, for anything malformed.
absl::StatusOr<ImportRecord> ParseImportRecord(std::string_view json);

}  // namespace eta
