// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <vector>

#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

constexpr size_t kMaxDecomposed = 32;  // Unicode's longest has 18 code points

int CombiningClass(utf8proc_int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

// Whether what comes before a code point has no part in what becomes of it.
bool BeginsAnew(utf8proc_int32_t code) {
  if (code < 0x80) return true;
  const bool vowel_or_tail =
      (code >= 0x1161 && code <= 0x1175) || (code >= 0x11A8 && code <= 0x11C2);
  const utf8proc_property_t& property = *utf8proc_get_property(code);
  const bool second = property.comb_index != UINT16_MAX && property.comb_index >= 0x8000;
  return property.combining_class == 0 && !second && !vowel_or_tail;
}

// Code points that may compose with one another, and the bytes that they came from.
class Cluster {
 public:
  Cluster(NormalForm form, Rewrite& rewrite, std::string_view text)
      : composes_(form == NormalForm::kNfc || form == NormalForm::kNfkc),
        rewrite_(rewrite),
        text_(text) {}

  bool empty() const { return size_ == 0; }
  void Add(size_t size, std::span<const utf8proc_int32_t> decomposed) {
    size_ += size;
    codes_.insert(codes_.end(), decomposed.begin(), decomposed.end());
  }
  void Flush() {
    if (size_ == 0) return;
    Order();
    size_t count = codes_.size();
    if (composes_) {
      const auto composed = utf8proc_normalize_utf32(
          codes_.data(), static_cast<utf8proc_ssize_t>(codes_.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      if (composed >= 0) count = static_cast<size_t>(composed);
    }
    written_.clear();
    for (size_t i = 0; i < count; ++i) {
      AppendUtf8(static_cast<char32_t>(codes_[i]), written_);
    }
    if (text_.substr(rewrite_.at(), size_) == written_) {
      rewrite_.Keep(size_);
    } else {
      rewrite_.Replace(size_, written_);
    }
    codes_.clear();
    size_ = 0;
  }

 private:
  // Marks behind a character into the order of their combining classes. Not by utf8proc, which
  // takes a time that grows with the square of their number.
  void Order() {
    for (auto begin = codes_.begin(); begin != codes_.end();) {
      const auto end =
          std::find_if(begin, codes_.end(), [](auto code) { return CombiningClass(code) == 0; });
      std::stable_sort(begin, end,
                       [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
      begin = end == codes_.end() ? end : end + 1;
    }
  }

  const bool composes_;
  Rewrite& rewrite_;
  const std::string_view text_;
  size_t size_ = 0;
  std::vector<utf8proc_int32_t> codes_;
  std::string written_;
};

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

void ApplyNormalForm(NormalForm form, MarkedText& marked) {
  const std::string_view text = marked.text;
  if (IsAscii(text)) return;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  Rewrite rewrite(marked);
  Cluster cluster(form, rewrite, text);
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      // All but the last of a run of ASCII stays as it is.
      size_t last = at;
      while (last + 1 < text.size() && static_cast<uint8_t>(text[last + 1]) < 0x80) ++last;
      cluster.Flush();
      rewrite.Keep(last - at);
      const auto code = static_cast<utf8proc_int32_t>(text[last]);
      cluster.Add(1, {&code, 1});
      at = last + 1;
      continue;
    }
    const Character character = CharacterAt(text, at);
    std::array<utf8proc_int32_t, kMaxDecomposed> decomposed{};
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code), decomposed.data(),
                                kMaxDecomposed, options, &boundary);
    const bool known = count > 0 && count <= static_cast<utf8proc_ssize_t>(kMaxDecomposed);
    if (!known) decomposed[0] = static_cast<utf8proc_int32_t>(character.code);
    const std::span<const utf8proc_int32_t> codes(decomposed.data(),
                                                  known ? static_cast<size_t>(count) : 1);
    if (BeginsAnew(codes.front())) cluster.Flush();
    cluster.Add(character.size, codes);
    at += character.size;
  }
  cluster.Flush();
  marked = rewrite.Finish();
}

}  // namespace eta
