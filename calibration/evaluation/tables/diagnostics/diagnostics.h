// Tables of what a model's attention does, rather than of what it is worth: each runs windows of
// the bench's texts and looks at chosen rows (observation.h). They need no GPU, and of a bench with
// one they use its host.
#pragma once

#include "absl/status/statusor.h"
#include "calibration/evaluation/tables/table.h"
#include "calibration/evaluation/tables/table_bench.h"

namespace eta {

// Mass, entropy and evenness of the keys below the threshold, before and after the gate.
// FailedPrecondition for a model without a gate.
absl::StatusOr<Table> MeasureMasking(TableBench& bench);
// How far pruned values cancel, against 1 / sqrt(m).
absl::StatusOr<Table> MeasureTail(TableBench& bench);
// Residual stream and logits of sparse attention against full attention's.
absl::StatusOr<Table> MeasureAlignment(TableBench& bench);
// Mass on the first four tokens, by layer.
absl::StatusOr<Table> MeasureSinks(TableBench& bench);
// Density by layer and head.
absl::StatusOr<Table> MeasureLayers(TableBench& bench);
// What eight statistics explain of thresholds, and what lies between documents.
// FailedPrecondition for a model that predicts no thresholds.
absl::StatusOr<Table> MeasureContextuality(TableBench& bench);
// What indices of several kinds and block sizes miss and admit needlessly.
absl::StatusOr<Table> MeasureIndex(TableBench& bench);

}  // namespace eta
