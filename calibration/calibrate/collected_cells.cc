#include "calibration/calibrate/collected_cells.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "kernels/calibration_cells.h"

namespace eta {
namespace {

// A row has less than 2^31 keys, and the weight of each is rounded by at most half a unit.
constexpr int64_t kMaxRowKeys = int64_t{1} << 31;
constexpr double kRowRounding = static_cast<double>(kMaxRowKeys) / 2.0;

absl::Status Inconsistent(const std::string& message) {
  return MakeError(absl::StatusCode::kInternal, absl::StrCat("calibration cells: ", message),
                   {.reason = "CELLS_INCONSISTENT"});
}

// One head's cells.
class HeadCells {
 public:
  HeadCells(const ScoreBins& bins, std::span<const uint64_t> cells) : at_(bins), cells_(cells) {}

  // Says which counts are impossible over `rows` rows; empty if none is.
  std::string Contradiction(int64_t rows) const {
    const double all = static_cast<double>(rows) * kCalibrationUnit;
    const double rounding = static_cast<double>(rows) * kRowRounding;
    const uint64_t most_keys = static_cast<uint64_t>(rows) * kMaxRowKeys;
    double weight = Value(at_.below_weight()) + Value(at_.above_weight());
    for (int32_t b = 0; b < at_.bins; ++b) weight += Value(at_.weight(b));
    if (weight > all + rounding || (Cell(at_.not_finite()) == 0 && weight < all - rounding)) {
      return absl::StrCat("weights of ", weight / kCalibrationUnit, " in ", rows, " rows");
    }
    for (const auto& [count, of, name] : {std::tuple(at_.below(), at_.below_weight(), "below"),
                                          std::tuple(at_.above(), at_.above_weight(), "above")}) {
      if ((Cell(count) == 0) != (Cell(of) == 0) || Value(of) > Value(count) * kCalibrationUnit ||
          Cell(count) > most_keys) {
        return absl::StrCat(Cell(count), " scores ", name, " the range with a weight of ",
                            Value(of) / kCalibrationUnit);
      }
    }
    if (Cell(at_.not_finite()) > most_keys) {
      return absl::StrCat(Cell(at_.not_finite()), " scores that are not finite in ", rows, " rows");
    }
    if (Value(at_.gate()) > all + rounding) {
      return absl::StrCat("gates of ", Value(at_.gate()) / kCalibrationUnit, " in ", rows, " rows");
    }
    double keys = Value(at_.unconditional());
    for (int32_t z = 0; z <= kZUnreachable; ++z) keys += Value(at_.needed(z));
    if (keys > static_cast<double>(most_keys)) {
      return absl::StrCat(keys, " keys above the threshold in ", rows, " rows");
    }
    return "";
  }

  // The cells as increments of a histogram, whose weights are written to `weights`.
  HeadScores Scores(int64_t rows, std::vector<double>& weights) const {
    weights.resize(static_cast<size_t>(at_.bins));
    for (int32_t b = 0; b < at_.bins; ++b) weights[static_cast<size_t>(b)] = Units(at_.weight(b));
    return {.weights = weights,
            .outside = {.below = Count(at_.below()),
                        .above = Count(at_.above()),
                        .below_weight = Units(at_.below_weight()),
                        .above_weight = Units(at_.above_weight()),
                        .not_finite = Count(at_.not_finite())},
            .gate_sum = Units(at_.gate()),
            .rows = rows};
  }

  HeadKeys Keys() const {
    HeadKeys keys;
    for (int32_t z = 0; z < kZBins; ++z) keys.needed[static_cast<size_t>(z)] = Count(at_.needed(z));
    keys.unconditional = Count(at_.unconditional());
    keys.beyond = Count(at_.needed(kZBeyond));
    keys.unreachable = Count(at_.needed(kZUnreachable));
    return keys;
  }

 private:
  uint64_t Cell(int64_t index) const { return cells_[static_cast<size_t>(index)]; }
  double Value(int64_t index) const { return static_cast<double>(Cell(index)); }
  double Units(int64_t index) const { return Value(index) / kCalibrationUnit; }
  int64_t Count(int64_t index) const { return static_cast<int64_t>(Cell(index)); }

  CalibrationCells at_;
  std::span<const uint64_t> cells_;
};

}  // namespace

absl::StatusOr<CollectedCells> CollectedCells::Create(int32_t num_layers, int32_t num_query_heads,
                                                      const ScoreBins& bins) {
  ASSIGN_OR_RETURN(ScoreHistogram histogram,
                   ScoreHistogram::Create(num_layers, num_query_heads, bins));
  ASSIGN_OR_RETURN(HeadZStatistics head_z, HeadZStatistics::Create(num_layers, num_query_heads));
  return CollectedCells(std::move(histogram), std::move(head_z));
}

absl::Status CollectedCells::Add(std::span<const uint64_t> cells, int64_t rows) {
  const ScoreBins& bins = histogram_.bins();
  const auto size = static_cast<size_t>(CalibrationCells(bins).size());
  const auto num_heads = static_cast<size_t>(histogram_.num_query_heads());
  const size_t heads = static_cast<size_t>(histogram_.num_layers()) * num_heads;
  if (cells.size() != heads * size) {
    return Inconsistent(absl::StrCat(cells.size(), " of them, not ", heads * size));
  }
  if (rows < 0 || rows > kMaxCalibrationRows) {
    return Inconsistent(absl::StrCat(rows, " rows: not in [0, ", kMaxCalibrationRows, "]"));
  }
  for (size_t i = 0; i < heads; ++i) {
    const std::string wrong = HeadCells(bins, cells.subspan(i * size, size)).Contradiction(rows);
    if (!wrong.empty()) {
      return Inconsistent(
          absl::StrCat("layer ", i / num_heads, ", head ", i % num_heads, ": ", wrong));
    }
  }
  std::vector<double> weights;
  for (size_t i = 0; i < heads; ++i) {
    const HeadCells head(bins, cells.subspan(i * size, size));
    const auto layer = static_cast<int32_t>(i / num_heads);
    const auto index = static_cast<int32_t>(i % num_heads);
    RETURN_IF_ERROR(histogram_.Add(layer, index, head.Scores(rows, weights)));
    RETURN_IF_ERROR(head_z_.Add(layer, index, head.Keys()));
  }
  return absl::OkStatus();
}

}  // namespace eta
