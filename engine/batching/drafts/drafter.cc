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
  if (!options.Wanted(request)) return nullptr;
  return options.source ? options.source(request) : std::make_unique<TextDrafts>(prompt);
}

}  // namespace

Drafter::Drafter(const DraftOptions& options, const Request& request,
                 std::span<const int32_t> prompt)
    : source_(SourceOf(options, request, prompt)), fixed_length_(options.length) {}

void Drafter::Propose(std::span<const int32_t> tokens, int32_t most, int32_t running,
                      double row_cost) {
  made_for_ = static_cast<int32_t>(tokens.size());
  drafts_.clear();
  if (source_ == nullptr || most <= 0) return;
  drafts_.resize(static_cast<size_t>(fixed_length_ > 0 ? fixed_length_ : DraftLength::kLong));
  match_ = source_->Propose(tokens, drafts_);
  int32_t length = fixed_length_;
  if (match_ == 0) {
    length = 0;
  } else if (length == 0) {
    length = length_.Next(match_, running, row_cost);
  }
  drafts_.resize(static_cast<size_t>(std::min(length, most)));
}

void Drafter::Observe(const DraftCounts& counts) {
  length_.Observe(match_, static_cast<int32_t>(counts.drafted),
                  static_cast<int32_t>(counts.accepted));
  counts_.Add(counts);
}

}  // namespace eta
