#include "training/commands/run_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

constexpr char kValue[] = "value.";
constexpr char kFirst[] = "first.";
constexpr char kSecond[] = "second.";
constexpr double kWorst = 1e9;  // what stands for a reading that was not finite

TensorShapes ShapesOf(const ParameterLayout& layout) {
  TensorShapes shapes;
  for (const Parameter& parameter : layout.parameters()) {
    shapes[kValue + parameter.name] = parameter.shape;
    if (!parameter.trained) continue;
    shapes[kFirst + parameter.name] = parameter.shape;
    shapes[kSecond + parameter.name] = parameter.shape;
  }
  return shapes;
}

double Finite(double value) {
  return std::isfinite(value) ? value : kWorst;
}

std::map<std::string, double> ScheduleOf(const TrainerState& state, const RunPosition& position) {
  const DualAscentState& dual = state.dual_ascent;
  return {{"skipped_in_row", state.skipped_in_row},
          {"tokens", static_cast<double>(state.tokens)},
          {"measured", static_cast<double>(position.measured)},
          {"adamw_steps", static_cast<double>(state.adamw.steps)},
          {"dual_weight", Finite(dual.weight)},
          {"dual_readings", static_cast<double>(dual.readings)},
          {"dual_union", Finite(dual.last.union_density)},
          {"dual_perplexity_increase", Finite(dual.last.perplexity_increase)}};
}

// Numbers of a schedule by name; the first that is missing or out of range is kept.
class ScheduleReader {
 public:
  explicit ScheduleReader(const std::map<std::string, double>& schedule) : schedule_(schedule) {}

  double Number(const std::string& name) {
    const auto found = schedule_.find(name);
    if (found != schedule_.end()) return found->second;
    Fail(name, " is missing");
    return 0.0;
  }
  int64_t Count(const std::string& name, double limit = 0x1p53) {
    const double number = Number(name);
    if (number >= 0.0 && number <= limit && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
    Fail(name, " is no count in its range");
    return 0;
  }
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const std::string& name, const char* sentence) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("checkpoint: schedule: ", name, sentence));
  }

  const std::map<std::string, double>& schedule_;
  absl::Status status_;
};

absl::StatusOr<TrainerState> TrainerStateOf(const TrainingState& state, RunPosition& position) {
  ScheduleReader schedule(state.schedule);
  position = {.sequences = state.sequences,
              .seconds = state.seconds,
              .measured = schedule.Count("measured")};
  TrainerState trainer = {
      .step = state.step,
      .skipped = state.skipped_steps,
      .skipped_in_row = static_cast<int32_t>(schedule.Count("skipped_in_row", 1e6)),
      .tokens = schedule.Count("tokens")};
  trainer.adamw.steps = schedule.Count("adamw_steps");
  trainer.dual_ascent = {
      .weight = schedule.Number("dual_weight"),
      .readings = schedule.Count("dual_readings"),
      .last = {.union_density = schedule.Number("dual_union"),
               .perplexity_increase = schedule.Number("dual_perplexity_increase")}};
  RETURN_IF_ERROR(schedule.status());
  return trainer;
}

// The stretch of a flat array that a tensor's name tells of.
std::span<const float> MomentsOf(const ParameterLayout& layout, const AdamWState& adamw,
                                 std::string_view name) {
  const bool first = name.starts_with(kFirst);
  name.remove_prefix(first ? sizeof(kFirst) - 1 : sizeof(kSecond) - 1);
  const Parameter* parameter = layout.Find(name);
  return std::span(first ? adamw.first : adamw.second)
      .subspan(static_cast<size_t>(parameter->offset), static_cast<size_t>(parameter->count));
}

}  // namespace

absl::Status SaveRun(const std::string& path, const Trainer& trainer, const Parameters& parameters,
                     const RunPosition& position,
                     const std::map<std::string, std::string>& settings) {
  const TrainerState now = trainer.ReadState();
  RETURN_IF_ERROR(parameters.backend().Finish());
  const ParameterLayout& layout = parameters.layout();
  const TrainingState state = {.step = now.step,
                               .sequences = position.sequences,
                               .skipped_steps = now.skipped,
                               .seconds = position.seconds,
                               .schedule = ScheduleOf(now, position),
                               .settings = settings};
  const TensorFiller read = [&](const std::string& name, std::span<float> out) -> absl::Status {
    if (name.starts_with(kValue)) {
      ASSIGN_OR_RETURN(const std::vector<float> values,
                       parameters.Read(std::string_view(name).substr(sizeof(kValue) - 1)));
      RETURN_IF_ERROR(parameters.backend().Finish());
      std::ranges::copy(values, out.begin());
    } else {
      std::ranges::copy(MomentsOf(layout, now.adamw, name), out.begin());
    }
    return absl::OkStatus();
  };
  return WriteTrainingCheckpoint(path, state, ShapesOf(layout), read);
}

absl::StatusOr<RunPosition> RestoreRun(const TrainingCheckpoint& checkpoint, RankTeam& team,
                                       const std::map<std::string, std::string>& settings) {
  const TrainingState& state = checkpoint.state();
  RETURN_IF_ERROR(CheckSettings(state.settings, settings));
  const ParameterLayout& layout = team.parameters().layout();
  RETURN_IF_ERROR(checkpoint.CheckTensors(ShapesOf(layout)));
  RunPosition position;
  ASSIGN_OR_RETURN(TrainerState trainer, TrainerStateOf(state, position));
  AdamWState& adamw = trainer.adamw;
  adamw.first.resize(static_cast<size_t>(layout.trained_count()));
  adamw.second.resize(static_cast<size_t>(layout.trained_count()));
  for (const Parameter& parameter : layout.parameters()) {
    const auto offset = static_cast<size_t>(parameter.offset);
    const auto count = static_cast<size_t>(parameter.count);
    std::vector<float> values(count);
    RETURN_IF_ERROR(checkpoint.Read(kValue + parameter.name, values));
    RETURN_IF_ERROR(team.Write(parameter.name, values));
    if (!parameter.trained) continue;
    RETURN_IF_ERROR(
        checkpoint.Read(kFirst + parameter.name, std::span(adamw.first).subspan(offset, count)));
    RETURN_IF_ERROR(
        checkpoint.Read(kSecond + parameter.name, std::span(adamw.second).subspan(offset, count)));
  }
  RETURN_IF_ERROR(team.WriteState(trainer));
  return position;
}

}  // namespace eta::training
