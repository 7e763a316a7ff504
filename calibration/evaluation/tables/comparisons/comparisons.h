// Tables that compare ways of attending, or formats of weights: what they cost in quality and what
// they read.
#pragma once

#include "absl/status/statusor.h"
#include "calibration/evaluation/tables/table.h"
#include "calibration/evaluation/tables/table_bench.h"

namespace eta {

// Perplexity and tasks, rivals at the default's union and at its bytes.
absl::StatusOr<Table> MeasureQuality(TableBench& bench);
// What offsets and budgets buy: reads against recall, perplexity and needles.
absl::StatusOr<Table> MeasurePareto(TableBench& bench);
// Block sizes at or near one union of blocks.
absl::StatusOr<Table> MeasureBlockSize(TableBench& bench);
// Dynamic thresholds against calibrated ones, in distribution and at twice the length.
absl::StatusOr<Table> MeasureFrozen(TableBench& bench);
// Retrieval of several kinds by length.
absl::StatusOr<Table> MeasureRuler(TableBench& bench);
// Other forms of the model (TableSettings::against) against the model: perplexity, divergence and
// needles. InvalidArgument (`against`) for a form of another model.
absl::StatusOr<Table> MeasureWeights(TableBench& bench);

}  // namespace eta
