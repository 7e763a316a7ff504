// A backend on which a rival chooses the blocks of decode rows in the place of SelectBlocks. All
// else is the other backend's: its attention reads the blocks that were chosen (ListBlocks). The
// rule runs on the host, over copies of the queries and keys; so a backend that defers stops twice
// in every layer. Steps are finished one by one: none is noted while another runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "calibration/evaluation/rivals/constants.h"
#include "calibration/evaluation/rivals/rival.h"
#include "kernels/forwarding_backend.h"

namespace eta {

class RivalBackend : public ForwardingBackend {
 public:
  // `num_threads` choose at a time, at least 1.
  RivalBackend(std::shared_ptr<Backend> backend, int num_threads);

  // Who chooses from the next sequence's beginning on; null: the backend itself. One that remembers
  // serves one sequence at a time, which begins at position 0.
  void Use(std::shared_ptr<const Rival> rival);

  // Collects bounds of every row at or behind `first_position` whose position is a multiple of
  // `stride`, prefill rows too, until it is called with null. With it no rival chooses.
  void CollectBounds(std::vector<SampledBounds>* sample, int32_t first_position = 0,
                     int32_t stride = 1);

  void Plan(const BatchView& batch) override;
  void AppendKv(const AppendKvParams& params) override;
  void SelectBlocks(const SelectBlocksParams& params) override;

 private:
  struct ChosenRow {
    const SequenceRows& sequence;
    int32_t index;     // of the step
    int32_t num_keys;  // T
  };

  // What SelectBlocks is given, on the host.
  struct Selecting;

  std::vector<ChosenRow> Rows(bool chosen) const;
  const KeptLayer* Kept(const KvLayerView& kv) const;
  KeptParts Needs() const;
  RivalHead HeadOf(const Selecting& selecting, const ChosenRow& row, int32_t query_head,
                   const RowBlocks& blocks) const;
  void Choose(const Selecting& selecting, const ChosenRow& row, int32_t query_head,
              RivalMemory* memory);
  std::vector<RivalMemory>& Memories(const Selecting& selecting,
                                     const std::vector<ChosenRow>& rows);
  void WatchAll(const Selecting& selecting, const std::vector<ChosenRow>& rows);
  void ChooseAll(const Selecting& selecting, const std::vector<ChosenRow>& rows);
  void SampleBounds(const Selecting& selecting);
  // Runs `work` on 0 .. count - 1, on as many threads as there are.
  void Spread(size_t count, const std::function<void(size_t)>& work) const;

  int num_threads_;
  std::shared_ptr<const Rival> rival_;
  std::vector<SampledBounds>* sample_ = nullptr;
  int32_t sample_from_ = 0;
  int32_t sample_stride_ = 1;
  BatchView batch_;
  std::vector<uint32_t> heads_;  // [R, HKV, capacity], of the layer that chose last
  std::map<const std::byte*, KeptLayer> layers_;                   // by the layer's tiles
  std::map<const std::byte*, std::vector<RivalMemory>> memories_;  // likewise, by query head
};

}  // namespace eta
