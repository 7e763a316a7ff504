// The tables that there are.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/evaluation/tables/table.h"
#include "calibration/evaluation/tables/table_bench.h"

namespace eta {

struct TableKind {
  const char* name;
  const char* help;  // half a sentence: what it measures
  // FailedPrecondition for a model that the table says nothing of: one without a gate, say.
  absl::StatusOr<Table> (*measure)(TableBench& bench);
  double weight = 1.0;  // of its time in that of a report
};

// In the order of a report. A new table takes its line in tables.cc.
std::span<const TableKind> TableKinds();
// The table with what its numbers hold for among its settings (TableBench::Provenance). Errors of
// both.
absl::StatusOr<Table> MeasureTable(const TableKind& kind, TableBench& bench);
// Null for another name.
const TableKind* FindTable(const std::string& name);

}  // namespace eta
