// All tables as one page with pictures, in a folder. A table that stands there already, measured
// with the same settings on the same model, is taken as it is: a report that was stopped goes on.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "calibration/evaluation/tables/table_bench.h"
#include "calibration/evaluation/tables/tables.h"

namespace eta {

struct ReportOptions {
  std::string folder;  // made if it is not there; holds report.md, and NAME.md, .json, .svg
  std::string title;
  // What decides the numbers beside the bench's settings: the model's fingerprint, the backend...
  std::string key;
  std::span<const TableKind* const> tables;
  // The share of the work that is done, and what is being measured; may be empty.
  std::function<void(double share, const std::string& table)> progress;
};

// A table that says nothing of this model is named on the page with the reason. InvalidArgument
// (`output`) for a folder that cannot be made; other errors end the report, and tables that were
// measured stay.
absl::Status WriteReport(TableBench& bench, const ReportOptions& options);

}  // namespace eta
