#include "training/progress/curves.h"

#include <cmath>
#include <optional>

#include "calibration/figures/svg.h"

namespace eta::training {
namespace {

void Add(FigureLine& line, int64_t step, std::optional<double> value) {
  if (value && std::isfinite(*value)) {
    line.points.push_back({.x = static_cast<double>(step), .y = *value});
  }
}

}  // namespace

std::string SvgCurves(const RunHistory& history, const std::string& title) {
  FigureLine loss{"loss", {}}, answers{"answers", {}}, full{"held-out, full", {}, true},
      sparse{"held-out, sparse", {}, true};
  FigureLine heads{"mean gate", {}}, blocks{"largest gate by block", {}},
      head_density{"decoded, by head", {}, true}, union_density{"decoded, union", {}, true};
  for (const StepRecord& record : history.steps) {
    Add(loss, record.step, record.loss);
    Add(answers, record.step, record.answer_loss);
    Add(heads, record.step, record.head_density);
    Add(blocks, record.step, record.block_density);
  }
  for (const EvaluationRecord& record : history.evaluations) {
    if (record.test) continue;  // another text's
    if (record.as_trained) full.name = "held-out, as trained";
    Add(full, record.step, std::log(record.full_perplexity));
    if (!record.sparse_perplexity) continue;
    Add(sparse, record.step, std::log(*record.sparse_perplexity));
    Add(head_density, record.step, record.head_density);
    Add(union_density, record.step, record.union_density);
  }
  const Figure figures[] = {
      LineChart{.title = "Loss, nats per token", .lines = {loss, answers, full, sparse}},
      LineChart{.title = "Density",
                .lines = {heads, blocks, head_density, union_density},
                .from_zero = true}};
  return SvgOf(figures, title);
}

}  // namespace eta::training
