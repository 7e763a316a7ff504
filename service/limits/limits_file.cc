// lint: untrusted-input, fuzz-covered
#include "service/limits/limits_file.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/base/tenant.h"
#include "engine/request/request.h"

namespace eta {
namespace {

constexpr size_t kMaxDepth = 3;
constexpr int64_t kMaxTokens = 1'000'000'000'000;
constexpr double kMaxRate = 1e9;
constexpr double kMinRate = 1e-3;       // a token in a quarter of an hour
constexpr double kBurstSeconds = 60.0;  // seconds of the rate, if no burst is given

// One part of the file, applied on top of its base.
struct Section {
  TenantLimit limit;
  bool burst_given = false;
};

void ReadInteger(JsonFields& fields, const std::string& field, int64_t low, int64_t high,
                 int64_t& value) {
  if (fields.Has(field)) value = fields.Integer(field, low, high);
}

// Reads a rate or a weight. 0 is allowed only if `or_zero`.
void ReadNumber(JsonFields& fields, const std::string& field, double low, double high, bool or_zero,
                double& value) {
  if (!fields.Has(field)) return;
  const double number = fields.Number(field);
  if ((number >= low && number <= high) || (or_zero && number == 0.0)) {
    value = number;
  } else {
    fields.Fail(field, absl::StrCat("must be ", or_zero ? "0 or " : "", low, " to ", high));
  }
}

absl::StatusOr<Section> ReadSection(const nlohmann::json& object, const std::string& prefix,
                                    Section section) {
  JsonFields fields(object, prefix + ".");
  TenantLimit& limit = section.limit;
  ReadInteger(fields, "max_calls", 0, 1'000'000, limit.max_calls);
  ReadNumber(fields, "tokens_per_second", kMinRate, kMaxRate, /*or_zero=*/true,
             limit.tokens_per_second);
  if (fields.Has("burst_tokens")) {
    section.burst_given = true;
    limit.burst_tokens = fields.Integer("burst_tokens", 1, kMaxTokens);
  }
  ReadNumber(fields, "weight", TenantShare::kMinWeight, TenantShare::kMaxWeight, /*or_zero=*/false,
             limit.weight);
  ReadInteger(fields, "max_kv_tokens", 0, kMaxTokens, limit.max_kv_tokens);
  int64_t calibrations = limit.max_calibrations;
  ReadInteger(fields, "max_calibrations", 0, std::numeric_limits<int32_t>::max(), calibrations);
  limit.max_calibrations = static_cast<int32_t>(calibrations);
  ReadInteger(fields, "profile_versions", 0, kMaxTokens, limit.profiles.versions);
  ReadInteger(fields, "profile_bytes", 0, std::numeric_limits<int64_t>::max(),
              limit.profiles.bytes);
  if (limit.tokens_per_second == 0.0 && object.contains("burst_tokens")) {
    fields.Fail("burst_tokens", "needs tokens_per_second");
  }
  if (!section.burst_given) {
    // cannot wrap: both are in their ranges
    limit.burst_tokens = static_cast<int64_t>(std::ceil(limit.tokens_per_second * kBurstSeconds));
  }
  RETURN_IF_ERROR(fields.Finish());
  return section;
}

}  // namespace

absl::StatusOr<LimitTable> ParseLimits(std::string_view text) {
  ASSIGN_OR_RETURN(const auto json,
                   ParseStrictJson("tenants file", text, kMaxLimitsBytes, kMaxDepth));
  JsonFields fields(json.root(), "");
  absl::StatusOr<Section> others = Section();
  if (fields.Has("default")) {
    others = ReadSection(fields.Object("default"), "default", *others);
    if (!fields.status().ok()) return fields.status();
    if (!others.ok()) return others.status();
  }
  LimitTable table{.others = others->limit, .named = {}};
  if (fields.Has("tenants")) {
    const nlohmann::json& tenants = fields.Object("tenants");
    if (tenants.size() > kMaxLimitedTenants) {
      return InvalidField("tenants", absl::StrCat("must be at most ", kMaxLimitedTenants));
    }
    for (const auto& [name, object] : tenants.items()) {
      if (!Tenant::Parse(name).ok()) {
        return InvalidField("tenants." + Quoted(name),
                            "must be a name of 1 to 255 printable ASCII characters");
      }
      const std::string path = "tenants." + name;
      if (!object.is_object()) return InvalidField(path, "must be an object");
      ASSIGN_OR_RETURN(Section section, ReadSection(object, path, *others));
      table.named.emplace(name, section.limit);
    }
  }
  RETURN_IF_ERROR(fields.Finish());
  return table;
}

}  // namespace eta
