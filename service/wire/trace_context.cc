// lint: untrusted-input, fuzz-covered
#include "service/wire/trace_context.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "service/wire/request_id.h"

namespace eta {
namespace {

constexpr size_t kVersionEnd = 2;
constexpr size_t kTraceEnd = 35;
constexpr size_t kParentEnd = 52;
constexpr size_t kLength = 55;  // of version 00
constexpr size_t kMaxStateBytes = 512;
constexpr size_t kMaxStateMembers = 32;
constexpr size_t kMaxStateKey = 256;
constexpr size_t kMaxTenantId = 241;  // of a key tenant@system
constexpr size_t kMaxSystemId = 14;
constexpr size_t kMaxStateValue = 256;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}
bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

bool AreKeyCharacters(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-' || c == '*' ||
           c == '/';
  });
}

bool IsStateKey(std::string_view key) {
  const size_t at = key.find('@');
  if (at == std::string_view::npos) {
    return !key.empty() && key.size() <= kMaxStateKey && absl::ascii_islower(key[0]) &&
           AreKeyCharacters(key);
  }
  const std::string_view tenant = key.substr(0, at);
  const std::string_view system = key.substr(at + 1);
  return !tenant.empty() && tenant.size() <= kMaxTenantId &&
         (absl::ascii_islower(tenant[0]) || absl::ascii_isdigit(tenant[0])) &&
         AreKeyCharacters(tenant) && !system.empty() && system.size() <= kMaxSystemId &&
         absl::ascii_islower(system[0]) && AreKeyCharacters(system);
}

bool IsStateValue(std::string_view value) {
  return !value.empty() && value.size() <= kMaxStateValue && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= 0x20 && c <= 0x7E && c != ',' && c != '='; });
}

std::string_view WithoutOuterSpace(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The list as it came. Empty if one member is bad, since that voids the list.
std::string ParseState(const std::vector<std::string_view>& states) {
  std::string list;
  for (const std::string_view part : states) {
    if (list.size() + part.size() + 1 > kMaxStateBytes) return "";
    absl::StrAppend(&list, list.empty() ? "" : ",", std::string(part));
  }
  std::set<std::string_view> keys;
  for (const absl::string_view padded : absl::StrSplit(list, ',')) {
    const std::string_view member = WithoutOuterSpace({padded.data(), padded.size()});
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos) return "";
    const std::string_view key = member.substr(0, equals);
    if (!IsStateKey(key) || !IsStateValue(member.substr(equals + 1))) return "";
    if (!keys.insert(key).second || keys.size() > kMaxStateMembers) return "";
  }
  return keys.empty() ? "" : list;
}

std::vector<std::string_view> ValuesOf(const grpc::ServerContextBase& context, const char* key) {
  std::vector<std::string_view> values;
  const auto [first, last] = context.client_metadata().equal_range(key);
  for (auto entry = first; entry != last; ++entry) {
    values.emplace_back(entry->second.data(), entry->second.size());
  }
  return values;
}

}  // namespace

std::string TraceContext::ParentOf(const std::string& span_id) const {
  return absl::StrCat("00-", trace_id, "-", span_id, sampled ? "-01" : "-00");
}

std::optional<TraceContext> ParseTraceContext(const std::vector<std::string_view>& parents,
                                              const std::vector<std::string_view>& states) {
  if (parents.size() != 1) return std::nullopt;
  const std::string_view text = parents.front();
  if (text.size() < kLength || text[kVersionEnd] != '-' || text[kTraceEnd] != '-' ||
      text[kParentEnd] != '-') {
    return std::nullopt;
  }
  const std::string_view version = text.substr(0, kVersionEnd);
  const std::string_view trace = text.substr(kVersionEnd + 1, kTraceEnd - kVersionEnd - 1);
  const std::string_view parent = text.substr(kTraceEnd + 1, kParentEnd - kTraceEnd - 1);
  const std::string_view flags = text.substr(kParentEnd + 1, kLength - kParentEnd - 1);
  if (!IsHex(version) || version == "ff" || !IsId(trace) || !IsId(parent) || !IsHex(flags)) {
    return std::nullopt;
  }
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return std::nullopt;
  const char low = flags[1];
  const int bits = absl::ascii_isdigit(low) ? low - '0' : low - 'a' + 10;
  return TraceContext{.trace_id = std::string(trace),
                      .parent_id = std::string(parent),
                      .sampled = (bits & 1) != 0,
                      .state = ParseState(states)};
}

std::optional<TraceContext> TraceContextOf(const grpc::ServerContextBase& context) {
  return ParseTraceContext(ValuesOf(context, kTraceParentKey), ValuesOf(context, kTraceStateKey));
}

TraceContext NewTrace(double share) {
  constexpr uint64_t kNumbers = uint64_t{1} << 56;  // that an id may end with
  const uint64_t low = DrawId();
  const auto number = static_cast<double>(low % kNumbers);
  // cannot wrap: the product is of doubles
  return TraceContext{.trace_id = NewSpanId() + absl::StrFormat("%016x", low),
                      .sampled = share > 0.0 && number >= (1.0 - share) * kNumbers};
}

std::string NewSpanId() {
  uint64_t id = 0;
  while (id == 0) id = DrawId();
  return absl::StrFormat("%016x", id);
}

}  // namespace eta
