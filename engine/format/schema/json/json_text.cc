// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/json/json_text.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/utf8_characters.h"
#include "engine/format/schema/json/json_number.h"

namespace eta::schema {
namespace {

constexpr size_t kMaxPointerBytes = 256;

std::string Unescaped(std::string_view part) {
  std::string name;
  for (size_t i = 0; i < part.size(); ++i) {
    const bool escape = part[i] == '~' && i + 1 < part.size();
    if (escape) ++i;
    name += !escape ? part[i] : part[i] == '1' ? '/' : '~';
  }
  return name;
}

}  // namespace

std::vector<uint32_t> JsonText::SortedMembers(uint32_t object) const {
  std::vector<uint32_t> members;
  for (const uint32_t member : ChildrenOf(object)) members.push_back(member);
  std::stable_sort(members.begin(), members.end(),
                   [this](uint32_t a, uint32_t b) { return values_[a].key < values_[b].key; });
  size_t kept = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const bool last =
        i + 1 == members.size() || values_[members[i]].key != values_[members[i + 1]].key;
    if (last) members[kept++] = members[i];
  }
  members.resize(kept);
  return members;
}

std::optional<uint32_t> JsonText::At(std::string_view pointer) const {
  uint32_t at = 0;
  while (!pointer.empty()) {
    if (!pointer.starts_with('/')) return std::nullopt;
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string name = Unescaped(pointer.substr(0, end));
    pointer.remove_prefix(end);
    std::optional<uint32_t> next;
    size_t index = 0;
    for (const uint32_t child : ChildrenOf(at)) {
      const bool named = values_[at].kind == JsonKind::kObject ? values_[child].key == name
                                                               : absl::StrCat(index) == name;
      if (named) next = child;
      ++index;
    }
    if (!next) return std::nullopt;
    at = *next;
  }
  return at;
}

std::string JsonText::Pointer(uint32_t at) const {
  std::vector<std::string> parts;
  for (; at != 0; at = values_[at].parent) {
    const uint32_t parent = values_[at].parent;
    std::string part;
    if (values_[parent].kind == JsonKind::kObject) {
      std::string_view key = values_[at].key;
      if (key.size() > kMaxPointerBytes) {
        key = key.substr(0, Utf8Before(key, kMaxPointerBytes + 1));
      }
      for (const char c : key) {
        if (c == '~' || c == '/') {
          part += c == '~' ? "~0" : "~1";
        } else {
          part += c;
        }
      }
      part = absl::Utf8SafeCEscape(part);
    } else {
      size_t index = 0;
      for (const uint32_t item : ChildrenOf(parent)) {
        if (item == at) break;
        ++index;
      }
      part = absl::StrCat(index);
    }
    parts.push_back(std::move(part));
  }
  std::string pointer;
  for (size_t i = parts.size(); i-- > 0;) {
    if (pointer.size() > kMaxPointerBytes) return pointer + "/...";
    pointer.append("/").append(parts[i]);
  }
  return pointer.empty() ? "the root" : pointer;
}

bool JsonEqual(const JsonText& a, uint32_t a_at, const JsonText& b, uint32_t b_at) {
  std::vector<std::pair<uint32_t, uint32_t>> open = {{a_at, b_at}};
  while (!open.empty()) {
    const auto [x, y] = open.back();
    open.pop_back();
    if (a[x].kind != b[y].kind) return false;
    switch (a[x].kind) {
      case JsonKind::kNull:
      case JsonKind::kFalse:
      case JsonKind::kTrue:
        break;
      case JsonKind::kNumber:
        if (Compare(Number(a[x].text), Number(b[y].text)) != 0) return false;
        break;
      case JsonKind::kString:
        if (a[x].text != b[y].text) return false;
        break;
      case JsonKind::kArray: {
        auto other = b.ChildrenOf(y).begin();
        const auto other_end = b.ChildrenOf(y).end();
        for (const uint32_t item : a.ChildrenOf(x)) {
          if (!(other != other_end)) return false;
          open.emplace_back(item, *other);
          ++other;
        }
        if (other != other_end) return false;
        break;
      }
      case JsonKind::kObject: {
        const std::vector<uint32_t> ours = a.SortedMembers(x);
        const std::vector<uint32_t> theirs = b.SortedMembers(y);
        if (ours.size() != theirs.size()) return false;
        for (size_t i = 0; i < ours.size(); ++i) {
          if (a[ours[i]].key != b[theirs[i]].key) return false;
          open.emplace_back(ours[i], theirs[i]);
        }
        break;
      }
    }
  }
  return true;
}

}  // namespace eta::schema
