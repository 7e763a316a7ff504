#include "calibration/evaluation/tables/tables.h"

#include <vector>

#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

const std::vector<TableKind>& Kinds() {
  static const std::vector<TableKind> kinds = {
      {.name = "quality",
       .help = "perplexity and tasks, rivals at the default's union and at its bytes",
       .measure = MeasureQuality,
       .weight = 8.0},
      {.name = "pareto",
       .help = "offsets and budgets: reads against recall, perplexity and needles",
       .measure = MeasurePareto,
       .weight = 6.0},
      {.name = "blocksize",
       .help = "block sizes at or near one union",
       .measure = MeasureBlockSize,
       .weight = 3.0},
      {.name = "frozen",
       .help = "dynamic against calibrated thresholds, also at twice the length",
       .measure = MeasureFrozen},
      {.name = "ruler",
       .help = "retrieval of four kinds by length",
       .measure = MeasureRuler,
       .weight = 8.0},
      {.name = "weights",
       .help = "weights in 8 and 4 bits, or other files of the model, against the model",
       .measure = MeasureWeights,
       .weight = 3.0},
      {.name = "index",
       .help = "what indices of every kind and block size miss",
       .measure = MeasureIndex,
       .weight = 2.0},
      {.name = "layers", .help = "density by layer and head", .measure = MeasureLayers},
      {.name = "masking",
       .help = "the keys below the threshold, before and after the gate",
       .measure = MeasureMasking},
      {.name = "tail", .help = "how far pruned values cancel", .measure = MeasureTail},
      {.name = "alignment",
       .help = "residual stream and logits, sparse against full",
       .measure = MeasureAlignment,
       .weight = 3.0},
      {.name = "sinks", .help = "mass on the first four tokens", .measure = MeasureSinks},
      {.name = "contextuality",
       .help = "what explains thresholds, within documents and between",
       .measure = MeasureContextuality}};
  return kinds;
}

}  // namespace

std::span<const TableKind> TableKinds() {
  return Kinds();
}

absl::StatusOr<Table> MeasureTable(const TableKind& kind, TableBench& bench) {
  ASSIGN_OR_RETURN(Table table, kind.measure(bench));
  ASSIGN_OR_RETURN(const auto provenance, bench.Provenance());
  table.settings.insert(table.settings.begin(), provenance.begin(), provenance.end());
  return table;
}

const TableKind* FindTable(const std::string& name) {
  for (const TableKind& kind : Kinds()) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

}  // namespace eta
