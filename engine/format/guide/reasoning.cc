#include "engine/format/guide/reasoning.h"

#include "engine/format/token_mask.h"
#include "kernels/params/sampling.h"

namespace eta {

Reasoning::Reasoning(std::string begin, std::string end,
                     std::shared_ptr<const FormatVocabulary> vocabulary,
                     const MakeMatcher& make_matcher)
    : begin_(std::move(begin)),
      end_(std::move(end)),
      vocabulary_(std::move(vocabulary)),
      borders_(Borders(end_)) {
  std::vector<uint32_t> all(MaskWords(vocabulary_->size), 0);
  for (int32_t id = 0; id < vocabulary_->size; ++id) AddToken(all, id);
  for (const int32_t id : vocabulary_->ends) RemoveToken(all, id);
  masks_.assign(end_.size(), all);
  for (size_t matched = 0; matched < end_.size(); ++matched) {
    for (size_t id = 0; id < vocabulary_->tokens.size(); ++id) {
      const Progress after = Advance(matched, vocabulary_->tokens[id]);
      if (!after.ended || Fits(after.rest, make_matcher)) continue;
      RemoveToken(masks_[matched], static_cast<int32_t>(id));
    }
  }
  openings_.resize(begin_.size());
  for (size_t matched = 0; matched < begin_.size(); ++matched) {
    const std::string_view left = std::string_view(begin_).substr(matched);
    for (size_t id = 0; id < vocabulary_->tokens.size(); ++id) {
      const std::string_view bytes = vocabulary_->tokens[id];
      const auto token = static_cast<int32_t>(id);
      if (bytes.empty() || vocabulary_->IsEnd(token)) continue;
      if (bytes.size() <= left.size()) {
        if (left.starts_with(bytes)) openings_[matched].push_back(token);
      } else if (bytes.starts_with(left)) {
        const Progress after = Advance(0, bytes.substr(left.size()));
        if (!after.ended || Fits(after.rest, make_matcher)) openings_[matched].push_back(token);
      }
    }
  }
}

std::vector<size_t> Reasoning::Borders(std::string_view marker) {
  std::vector<size_t> borders(marker.size() + 1, 0);
  size_t border = 0;
  for (size_t i = 1; i < marker.size(); ++i) {
    while (border > 0 && marker[i] != marker[border]) border = borders[border];
    if (marker[i] == marker[border]) ++border;
    borders[i + 1] = border;
  }
  return borders;
}

Reasoning::Progress Reasoning::Advance(size_t matched, std::string_view bytes) const {
  for (size_t i = 0; i < bytes.size(); ++i) {
    while (matched > 0 && bytes[i] != end_[matched]) matched = borders_[matched];
    if (bytes[i] == end_[matched]) ++matched;
    if (matched == end_.size()) return {.matched = 0, .ended = true, .rest = bytes.substr(i + 1)};
  }
  return {.matched = matched, .ended = false, .rest = {}};
}

bool Reasoning::Fits(std::string_view text, const MakeMatcher& make_matcher) const {
  return text.empty() || make_matcher()->AcceptText(text);
}

size_t Reasoning::bytes() const {
  size_t bytes = begin_.size() + end_.size();
  for (const auto& mask : masks_) bytes += mask.size() * sizeof(uint32_t);
  for (const auto& tokens : openings_) bytes += tokens.size() * sizeof(int32_t);
  return bytes;
}

}  // namespace eta
