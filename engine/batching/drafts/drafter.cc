#include "engine/batching/drafts/drafter.h"

#include <algorithm>

#include "engine/batching/drafts/suffix_index.h"

namespace eta {
namespace {

class TextDrafts final : public DraftSource {
 public:
  explicit TextDrafts(std::span<const int32_t> prompt) { (void)index_.Append(prompt); }

  int32_t Propose(std::span<const int32_t> tokens, std::span<int32_t> draft) override {
    const auto known = static_cast<size_t>(index_.size());
    if (!index_.Append(tokens.subspan(known)).ok()) return 0;
    return index_.Propose(draft);
  }

 private:
  SuffixIndex index_;
};

std::unique_ptr<DraftSource> SourceOf(const DraftOptions& options, const Request& request,
                                      std::span<const int32_t> prompt) {
  const Speculation wanted = options.Wanted(request);
  if (wanted == Speculation::kOff) return nullptr;
  if (options.source) return options.source(request);
  return wanted == Speculation::kSelf ? nullptr : std::make_unique<TextDrafts>(prompt);
}

}  // namespace

Drafter::Drafter(const DraftOptions& options, const Request& request,
                 std::span<const int32_t> prompt)
    : wanted_(options.Wanted(request)),
      source_(SourceOf(options, request, prompt)),
      fixed_length_(options.length) {}

void Drafter::Propose(std::span<const int32_t> tokens, int32_t most, const DraftCosts& costs) {
  Restart();
  made_for_ = static_cast<int32_t>(tokens.size());
  if (most <= 0) return;
  const auto longest = static_cast<size_t>(
      fixed_length_ > 0 ? fixed_length_ : std::max(DraftLength::kLong, SelfLength::kMost));
  if (wanted_ != Speculation::kSelf) {
    drafts_.resize(longest);
    match_ = source_->Propose(tokens, drafts_);
    int32_t length = fixed_length_;
    if (match_ == 0) {
      length = 0;
    } else if (length == 0) {
      length = length_.Next(match_, costs.running, costs.row_cost());
    }
    drafts_.resize(static_cast<size_t>(std::min(length, most)));
  }
  if (!drafts_.empty() || !self() || !costs.sparser) return;
  match_ = 0;
  const int32_t length = fixed_length_ > 0 ? fixed_length_ : self_length_.Next(costs.self);
  most_ = std::min(most, costs.most_made);
  to_make_ = std::min(length, most_);
  drafts_.reserve(longest);
  if (wanted_ != Speculation::kSelf || source_ == nullptr) return;
  script_.resize(longest);
  if (source_->Propose(tokens, script_) == 0) script_.clear();
}

void Drafter::Cut(size_t count) {
  drafts_.resize(count);
  to_make_ = std::min(to_make_, static_cast<int32_t>(count));
}

void Drafter::Restart() {
  made_for_ = 0;
  match_ = 0;
  to_make_ = 0;
  drafts_.clear();
  script_.clear();
}

void Drafter::Make(int32_t token) {
  drafts_.push_back(script_.empty() ? token : script_[drafts_.size()]);
}

void Drafter::Observe(const DraftCounts& counts) {
  const auto drafted = static_cast<int32_t>(counts.drafted);
  const auto accepted = static_cast<int32_t>(counts.accepted);
  if (match_ > 0) {
    length_.Observe(match_, drafted, accepted);
  } else {
    self_length_.Observe(drafted, accepted);
  }
  counts_.Add(counts);
}

}  // namespace eta
