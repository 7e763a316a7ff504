// A backend that forwards to another one as late as Backend allows. It only notes the ops. At the
// launch of a step it reads the host memory that the ops were given, and it runs them when the step
// is finished. So anything noted meanwhile comes before them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/forwarding_backend.h"
#include "kernels/params/calibration.h"
#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "kernels/params/sampling.h"
#include "kernels/params/selection.h"

namespace eta::testing {

class DeferringBackend final : public ForwardingBackend, public ExpertOps {
 public:
  using ForwardingBackend::ForwardingBackend;

  bool defers() const override { return true; }
  void Plan(const BatchView& batch) override { noted_ = {batch, {}}; }
  void SetTokens(std::span<const int32_t> tokens) override { noted_.batch.tokens = tokens; }
  void Launch() override { Start(); }
  void Discard() override { noted_ = {}; }
  absl::Status Finish() override {
    if (!runs_) Start();
    Run();
    return ForwardingBackend::Finish();
  }

  // These first run the ops that were noted before them.
  void Upload(std::byte* to, const void* from, size_t bytes) override {
    Flush();
    ForwardingBackend::Upload(to, from, bytes);
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    Flush();
    ForwardingBackend::Download(to, from, bytes);
  }

  void Embed(const EmbedParams& params) override {
    Note([this, params] { ForwardingBackend::Embed(params); });
  }
  void RmsNorm(const RmsNormParams& params) override {
    noted_.ops.emplace_back([this, params] {
      return [this, norm = params,
              rows = std::vector<int32_t>(params.rows.begin(), params.rows.end())]() mutable {
        norm.rows = rows;
        ForwardingBackend::RmsNorm(norm);
      };
    });
  }
  void MatMul(const MatMulParams& params) override {
    Note([this, params] { ForwardingBackend::MatMul(params); });
  }
  void AddBias(const AddBiasParams& params) override {
    Note([this, params] { ForwardingBackend::AddBias(params); });
  }
  void NormHeads(const NormHeadsParams& params) override {
    Note([this, params] { ForwardingBackend::NormHeads(params); });
  }
  void Rope(const RopeParams& params) override {
    Note([this, params] { ForwardingBackend::Rope(params); });
  }
  void AppendKv(const AppendKvParams& params) override {
    Note([this, params] { ForwardingBackend::AppendKv(params); });
  }
  void PredictThresholds(const ThresholdParams& params) override {
    Note([this, params] { ForwardingBackend::PredictThresholds(params); });
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    Note([this, params] { ForwardingBackend::SelectBlocks(params); });
  }
  void ListBlocks(const ListBlocksParams& params) override {
    Note([this, params] { ForwardingBackend::ListBlocks(params); });
  }
  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    Note([this, params] { ForwardingBackend::SelectPrefillBlocks(params); });
  }
  void DecodeAttention(const AttentionParams& params) override {
    Note([this, params] { ForwardingBackend::DecodeAttention(params); });
  }
  void PrefillAttention(const AttentionParams& params) override {
    Note([this, params] { ForwardingBackend::PrefillAttention(params); });
  }
  void CountRecall(const RecallParams& params) override {
    Note([this, params] { ForwardingBackend::CountRecall(params); });
  }
  void MeasureShadow(const ShadowParams& params) override {
    Note([this, params] { ForwardingBackend::MeasureShadow(params); });
  }
  void CollectCalibration(const CalibrationParams& params) override {
    Note([this, params] { ForwardingBackend::CollectCalibration(params); });
  }
  void SwiGlu(const SwiGluParams& params) override {
    Note([this, params] { ForwardingBackend::SwiGlu(params); });
  }
  ExpertOps& experts() override { return *this; }
  absl::StatusOr<std::unique_ptr<ExpertStack>> Stack(
      std::vector<std::unique_ptr<Matrix>> matrices) override {
    return ForwardingBackend::experts().Stack(std::move(matrices));
  }
  void RouteRows(const RouteRowsParams& params) override {
    Note([this, params] { ForwardingBackend::experts().RouteRows(params); });
  }
  void MultiplyExperts(const MultiplyExpertsParams& params) override {
    Note([this, params] { ForwardingBackend::experts().MultiplyExperts(params); });
  }
  void AddExperts(const AddExpertsParams& params) override {
    Note([this, params] { ForwardingBackend::experts().AddExperts(params); });
  }
  void Sample(const SampleParams& params) override {
    noted_.ops.emplace_back([this, params] {
      return [this, params, draws = Draws(params.rows)]() mutable { Sample(params, draws); };
    });
  }

 private:
  using Op = std::function<void()>;

  struct Noted {
    BatchView batch;
    std::vector<std::function<Op()>> ops;  // each returns the op with the data that it reads
  };
  // The data that was read at the launch.
  struct Running {
    std::vector<int32_t> tokens;
    std::vector<SequenceRows> sequences;
    std::deque<std::vector<int32_t>> block_tables;
    std::deque<std::vector<std::span<const int32_t>>> more_tables;
    std::vector<Op> ops;
  };
  struct Draw {
    SampleRow row;
    std::vector<TokenCount> counts;
    std::vector<LogitBias> bias;
    std::vector<uint32_t> mask;
  };

  void Note(Op op) {
    noted_.ops.emplace_back([op = std::move(op)] { return op; });
  }

  static std::vector<Draw> Draws(std::span<const SampleRow> rows) {
    std::vector<Draw> draws;
    for (const SampleRow& row : rows) {
      draws.push_back({row,
                       {row.counts.begin(), row.counts.end()},
                       {row.bias.begin(), row.bias.end()},
                       {row.mask.begin(), row.mask.end()}});
    }
    return draws;
  }
  void Sample(const SampleParams& params, std::vector<Draw>& draws) {
    std::vector<SampleRow> rows;
    for (Draw& draw : draws) {
      draw.row.counts = draw.counts;
      draw.row.bias = draw.bias;
      draw.row.mask = draw.mask;
      rows.push_back(draw.row);
    }
    ForwardingBackend::Sample({params.logits, rows});
    for (size_t i = 0; i < rows.size(); ++i) {
      params.rows[i].token = rows[i].token;
      params.rows[i].finite = rows[i].finite;
      params.rows[i].barred = rows[i].barred;
      params.rows[i].logprob = rows[i].logprob;
    }
  }

  // Reads the data of the noted step, or of a further part of the one that runs.
  void Start() {
    if (!runs_) ReadBatch();
    for (const auto& op : noted_.ops) running_.ops.push_back(op());
    noted_.ops.clear();
    runs_ = true;
  }
  void ReadBatch() {
    const BatchView& batch = noted_.batch;
    running_ = {{batch.tokens.begin(), batch.tokens.end()},
                {batch.sequences.begin(), batch.sequences.end()},
                {},
                {},
                {}};
    const auto copy = [this](std::span<const int32_t> table) {
      running_.block_tables.emplace_back(table.begin(), table.end());
      return std::span<const int32_t>(running_.block_tables.back());
    };
    for (SequenceRows& sequence : running_.sequences) {
      sequence.block_table = copy(sequence.block_table);
      auto& more = running_.more_tables.emplace_back();
      for (const std::span<const int32_t> table : sequence.more_tables) more.push_back(copy(table));
      sequence.more_tables = more;
    }
  }
  void Run() {
    ForwardingBackend::Plan({running_.tokens, running_.sequences});
    for (const Op& op : std::exchange(running_.ops, {})) op();
    runs_ = false;
  }
  // If a step is run in parts, its remaining part has the same batch.
  void Flush() {
    if (noted_.ops.empty()) return;
    Start();
    Run();
  }

  Noted noted_;
  Running running_;
  bool runs_ = false;
};

}  // namespace eta::testing
