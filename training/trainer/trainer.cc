#include "training/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

// Sums of a step that ranks add up, besides densities.
constexpr size_t kSums = 4;

// The regulariser's value; a model without a gate has none.
double Penalty(const RegulariserOptions& options, const BatchLoss& loss) {
  if (options.weight == 0.0 || loss.gate_density.empty()) return 0.0;
  double mean = 0.0;
  if (options.block_share < 1.0) mean += (1.0 - options.block_share) * loss.MeanGateDensity();
  if (options.block_share > 0.0) mean += options.block_share * loss.MeanBlockDensity();
  return options.weight * mean;
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, TrainingModel& model, TrainingModel* teacher,
                 BatchSource& source)
    : options_(options),
      model_(model),
      teacher_(teacher),
      source_(source),
      backend_(model.parameters().backend()) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options,
                                                         TrainingModel& model,
                                                         TrainingModel* teacher,
                                                         BatchSource& source) {
  if (options.micro_batches < 1 || options.max_skipped < 1) {
    return absl::InvalidArgumentError("trainer: micro_batches and max_skipped must be at least 1");
  }
  auto trainer = std::unique_ptr<Trainer>(new Trainer(options, model, teacher, source));
  ASSIGN_OR_RETURN(trainer->adamw_, AdamW::Create(options.adamw, model.parameters()));
  if (options.dual_ascent) trainer->dual_ascent_.emplace(*options.dual_ascent);
  const ModelConfig& c = model.spec().config;
  const size_t sums =
      kSums + 2 * static_cast<size_t>(c.num_layers) * static_cast<size_t>(c.num_query_heads);
  ASSIGN_OR_RETURN(trainer->sums_, trainer->backend_.Allocate(sums * sizeof(float)));
  return trainer;
}

StepSettings Trainer::Settings() const {
  StepSettings settings;
  settings.beta = static_cast<float>(options_.beta.At(step_));
  settings.gate_strength = static_cast<float>(options_.gate_strength.At(step_));
  settings.ce_scale = options_.ce_scale;
  settings.kl_scale = options_.kl_scale;
  settings.regulariser = {options_.sparsity.At(step_), options_.block_share, options_.group_blocks};
  if (dual_ascent_) {
    const double share =
        options_.sparsity.peak > 0.0 ? settings.regulariser.weight / options_.sparsity.peak : 1.0;
    settings.regulariser.weight = dual_ascent_->weight() * share;
  }
  return settings;
}

absl::Status Trainer::ReadBatches(std::vector<MicroBatch>& batches) {
  for (int32_t i = 0; i < options_.micro_batches; ++i) {
    MicroBatch batch;
    RETURN_IF_ERROR(source_.Next(batch));
    if (!batches.empty() && batch.length != batches.front().length) {
      return absl::InvalidArgumentError(absl::StrCat("trainer: micro-batches of ",
                                                     batches.front().length, " and of ",
                                                     batch.length, " tokens in one step"));
    }
    batches.push_back(std::move(batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Trainer::Step() {
  std::vector<MicroBatch> batches;
  RETURN_IF_ERROR(ReadBatches(batches));
  StepSettings settings = Settings();
  settings.sequences_in_step = 0;
  for (const MicroBatch& batch : batches) settings.sequences_in_step += batch.sequences;
  settings.sequences_in_step *= backend_.world_size();

  Parameters& parameters = model_.parameters();
  parameters.ZeroGradients();
  BatchLoss loss;
  for (const MicroBatch& batch : batches) {
    ASSIGN_OR_RETURN(auto ran, model_.Run(batch.view(), settings, teacher_, true));
    loss.Add(ran);
  }
  if (backend_.world_size() > 1) {
    backend_.AllReduce(parameters.gradients(), parameters.layout().trained_count());
    SumOverRanks(loss);
  }

  StepReport report;
  report.step = step_;
  report.tokens = settings.sequences_in_step * batches.front().length;
  report.rate = options_.rate.At(step_);
  report.beta = static_cast<double>(settings.beta);
  report.gate_strength = static_cast<double>(settings.gate_strength);
  report.sparsity_weight = settings.regulariser.weight;
  report.cross_entropy =
      loss.targets == 0 ? 0.0 : loss.cross_entropy / static_cast<double>(loss.targets);
  report.divergence = loss.divergence / static_cast<double>(report.tokens);
  report.loss = loss.weighted + Penalty(settings.regulariser, loss);
  report.gate_density = loss.MeanGateDensity();
  report.block_density = loss.MeanBlockDensity();
  report.head_gate_density = std::move(loss.gate_density);
  report.head_block_density = std::move(loss.block_density);
  report.gradient_norm = adamw_->GradientNorm();
  report.skipped = !std::isfinite(report.gradient_norm) || !std::isfinite(report.loss);
  if (!report.skipped) adamw_->Step(report.rate, report.gradient_norm);
  RETURN_IF_ERROR(backend_.Finish());

  ++step_;
  tokens_ += report.tokens;
  skipped_in_row_ = report.skipped ? skipped_in_row_ + 1 : 0;
  if (report.skipped) ++skipped_;
  if (skipped_in_row_ >= options_.max_skipped) {
    return absl::AbortedError(
        absl::StrCat("training: the loss or its gradients were not finite in ", skipped_in_row_,
                     " steps in a row, up to step ", report.step));
  }
  return report;
}

// Densities first, since their number is known to all ranks alike.
void Trainer::SumOverRanks(BatchLoss& loss) {
  std::vector<float> sums;
  sums.insert(sums.end(), loss.gate_density.begin(), loss.gate_density.end());
  sums.insert(sums.end(), loss.block_density.begin(), loss.block_density.end());
  for (const double sum :
       {loss.cross_entropy, static_cast<double>(loss.targets), loss.weighted, loss.divergence}) {
    sums.push_back(static_cast<float>(sum));
  }
  backend_.Upload(sums_->data(), sums.data(), sums.size() * sizeof(float));
  backend_.AllReduce(sums_->as<float>(), static_cast<int64_t>(sums.size()));
  backend_.Download(sums.data(), sums_->data(), sums.size() * sizeof(float));
  size_t at = 0;
  for (float& density : loss.gate_density) density = sums[at++];
  for (float& density : loss.block_density) density = sums[at++];
  loss.cross_entropy = static_cast<double>(sums[at++]);
  loss.targets = std::llround(sums[at++]);
  loss.weighted = static_cast<double>(sums[at++]);
  loss.divergence = static_cast<double>(sums[at++]);
}

void Trainer::Update(const DensityReading& reading) {
  if (!dual_ascent_) return;
  const CosineRate& rate = options_.rate;
  const double range = rate.peak - rate.floor;
  const double share = range > 0.0 ? (rate.At(step_) - rate.floor) / range : 0.0;
  dual_ascent_->Update(reading, std::clamp(share, 0.0, 1.0));
}

TrainerState Trainer::ReadState() const {
  TrainerState state;
  state.step = step_;
  state.skipped = skipped_;
  state.skipped_in_row = skipped_in_row_;
  state.tokens = tokens_;
  if (dual_ascent_) state.dual_ascent = dual_ascent_->state();
  state.adamw = adamw_->ReadState();
  return state;
}

absl::Status Trainer::WriteState(const TrainerState& state) {
  RETURN_IF_ERROR(adamw_->WriteState(state.adamw));
  step_ = state.step;
  skipped_ = state.skipped;
  skipped_in_row_ = state.skipped_in_row;
  tokens_ = state.tokens;
  if (options_.dual_ascent && state.dual_ascent.weight > 0.0) {
    dual_ascent_.emplace(*options_.dual_ascent, state.dual_ascent);
  }
  return backend_.Finish();
}

}  // namespace eta::training
