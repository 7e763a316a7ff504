// A backend on which a rival chooses the blocks of decode rows in the place of SelectBlocks. All
// else is the other backend's: its attention reads the blocks that were chosen (ListBlocks). Where
// a rival chooses by key, the blocks with such a key are listed, and attention over the keys alone,
// computed on the host, takes the place of the backend's; counts are of keys. The rule runs on the
// host, over copies of the queries and keys; so a backend that defers stops twice in every layer.
// Steps are finished one by one: none is noted while another runs.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "calibration/evaluation/rivals/constants.h"
#include "calibration/evaluation/rivals/rival.h"
#include "kernels/cpu/workers.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/selection.h"

namespace eta {

class RivalBackend : public ForwardingBackend {
 public:
  // `num_threads` choose at a time, at least 1.
  RivalBackend(std::shared_ptr<Backend> backend, int num_threads);
  ~RivalBackend() override;

  int num_threads() const { return workers_.num_threads(); }

  // The rival chooses from the next sequence's beginning on; null: the backend itself does. One
  // that remembers serves one sequence at a time, which begins at position 0.
  void Use(std::shared_ptr<const Rival> rival);

  // For sequences that share a prompt. From the next sequence's beginning on, all parts that these
  // rivals need are kept, and those that remember watch the rows whose position is a multiple of
  // `stride`. The rows must be full attention's until Choose.
  void Prepare(const std::vector<std::shared_ptr<const Rival>>& rivals, int32_t stride = 1);
  // The rival chooses from the next row on: one of those that were prepared, or null for the
  // backend itself. Each one that remembers does so from what it had watched at the first call
  // after Prepare. Of later rows only what it needs is kept.
  void Choose(std::shared_ptr<const Rival> rival);

  // Collects bounds of every row at or behind `first_position` whose position is a multiple of
  // `stride`, prefill rows too, until it is called with null. With it no rival chooses.
  void CollectBounds(std::vector<SampledBounds>* sample, int32_t first_position = 0,
                     int32_t stride = 1);

  void Plan(const BatchView& batch) override;
  void AppendKv(const AppendKvParams& params) override;
  void SelectBlocks(const SelectBlocksParams& params) override;
  void DecodeAttention(const AttentionParams& params) override;
  absl::Status Finish() override;

 private:
  struct ChosenRow {
    const SequenceRows& sequence;
    int32_t index;     // of the step
    int32_t num_keys;  // T
  };

  // What SelectBlocks is given, on the host, and what is chosen by key.
  struct Selecting;

  // By the layer's tiles and by the rival that watches, for each query head.
  using Memories = std::map<std::pair<const std::byte*, const Rival*>, std::vector<RivalMemory>>;

  std::vector<ChosenRow> Rows(bool chosen) const;
  const KeptLayer* Kept(const KvLayerView& kv) const;
  KeptParts Needs() const;
  const Rival& WatcherOf(const Rival& rival) const;
  std::vector<RivalMemory>& MemoriesOf(const Rival& rival, const Selecting& selecting,
                                       const std::vector<ChosenRow>& rows);
  RivalHead HeadOf(const Selecting& selecting, const ChosenRow& row, int32_t query_head,
                   const RowBlocks& blocks) const;
  void ChooseFor(Selecting& selecting, const ChosenRow& row, int32_t query_head,
                 std::span<const float> seen, RivalMemory* memory);
  void ChooseInOrder(Selecting& selecting, const std::vector<ChosenRow>& rows);
  void WatchAll(const Rival& rival, const Selecting& selecting, const std::vector<ChosenRow>& rows);
  void ChooseAll(Selecting& selecting, const std::vector<ChosenRow>& rows);
  void CountKeys(Selecting& selecting, const std::vector<ChosenRow>& rows);
  void SampleBounds(const Selecting& selecting);

  cpu::Workers workers_;
  std::vector<std::shared_ptr<const Rival>> prepared_;  // whose needs are kept
  bool preparing_ = false;                              // from Prepare to Choose
  int32_t watch_stride_ = 1;
  std::shared_ptr<const Rival> rival_;  // who chooses
  std::vector<SampledBounds>* sample_ = nullptr;
  int32_t sample_from_ = 0;
  int32_t sample_stride_ = 1;
  BatchView batch_;
  std::vector<uint32_t> heads_;        // [R, HKV, capacity], of the layer that chose last
  std::unique_ptr<Selecting> by_key_;  // of that layer
  std::vector<std::pair<int32_t*, int32_t>> counted_;  // counts of keys, written when it finishes
  std::map<const std::byte*, KeptLayer> layers_;       // by the layer's tiles
  Memories memories_;
  Memories watched_;  // memories_ at the first Choose after Prepare
};

}  // namespace eta
