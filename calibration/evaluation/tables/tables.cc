#include "calibration/evaluation/tables/tables.h"

#include <vector>

#include "calibration/evaluation/tables/comparisons/comparisons.h"

namespace eta {
namespace {

const std::vector<TableKind>& Kinds() {
  static const std::vector<TableKind> kinds = {
      {.name = "quality",
       .help = "perplexity and tasks, rivals at equal reads",
       .measure = MeasureQuality,
       .weight = 8.0},
      {.name = "pareto",
       .help = "offsets and budgets: reads against recall, perplexity and needles",
       .measure = MeasurePareto,
       .weight = 6.0},
      {.name = "blocksize",
       .help = "block sizes at one union",
       .measure = MeasureBlockSize,
       .weight = 3.0},
      {.name = "frozen",
       .help = "dynamic against calibrated thresholds, also at twice the length",
       .measure = MeasureFrozen},
      {.name = "ruler",
       .help = "retrieval of four kinds by length",
       .measure = MeasureRuler,
       .weight = 8.0}};
  return kinds;
}

}  // namespace

std::span<const TableKind> TableKinds() {
  return Kinds();
}

const TableKind* FindTable(const std::string& name) {
  for (const TableKind& kind : Kinds()) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

}  // namespace eta
