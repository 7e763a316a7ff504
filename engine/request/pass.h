// A pass of known tokens through the model, beside the requests that generate: what calibration
// measures with. Nothing is sampled and nothing is shared with requests but the device.
//
// Passes are background work. While requests have rows to compute, passes get at most a quarter of
// the steps and a tenth of the time; background_pacer.h says how streams are kept from feeling it.
// A request that needs blocks takes them from a pass. That pass later computes its rows again, and
// counts none twice. Without requests passes get every step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "kernels/calibration_cells.h"

namespace eta {

// The logits that a pass may hold in memory.
inline constexpr int64_t kMaxPassLogitBytes = int64_t{256} << 20;

struct Pass {
  std::string id;               // tells it apart in reports
  std::string tenant;           // likewise
  std::vector<int32_t> tokens;  // 1 to max_context
  AttentionChoice attention;
  // Rows [0, decode_from) attend as a prompt, the others as decode rows: blocks are selected. Full
  // attention gives the same either way, and is faster as a prompt.
  int32_t decode_from = 0;
  // Wanted: -log p(tokens[i + 1]) of every row i >= *loss_from but the last token's.
  std::optional<int32_t> loss_from;
  // Wanted: all logits of these rows, each of which has a loss; ascending. At most
  // kMaxPassLogitBytes.
  std::vector<int32_t> logit_rows;
  bool top = false;  // wanted: of every row with a loss, whether tokens[i + 1] is the most probable
  bool recall = false;            // of the decode rows; reads every key once more
  bool shadow = false;            // of the decode rows: what full attention would have given;
                                  // reads every key once more
  std::optional<ScoreBins> bins;  // wanted: cells over the prompt rows from collect_from on
  int32_t collect_from = 0;       // at most kMaxCalibrationRows before decode_from
};

struct PassOutcome {
  std::vector<float> losses;            // nats, in row order
  std::vector<float> logits;            // [logit_rows, V]
  std::vector<uint8_t> top;             // 0 or 1 beside each loss, if wanted
  AttentionSums attention;              // of the decode rows
  std::vector<int64_t> above;           // [L, HQ], with recall: keys with S >= tau_eff ...
  std::vector<int64_t> above_admitted;  // [L, HQ]: ... and those of them in admitted blocks
  std::vector<float> mass;              // [decode rows, full layers], with shadow: mass kept, and
  std::vector<float> error;             // ... output error; means over the query heads
  std::vector<uint64_t> cells;          // [L, HQ, CalibrationCells(bins).size()], with bins
  int64_t collected_rows = 0;           // behind the cells
  int32_t preemptions = 0;
};

// Called on the engine's step thread; must not block. OnEnded is the last call, and always comes.
class PassSink {
 public:
  virtual ~PassSink() = default;
  virtual void OnProgress(int32_t rows_done) = 0;
  virtual void OnEnded(absl::StatusOr<PassOutcome> outcome) = 0;
};

}  // namespace eta
