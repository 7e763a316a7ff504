#include "tests/testing/profiles/store_model.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {
namespace {

absl::Status Wrong(const std::string& sentence) {
  return MakeError(absl::StatusCode::kFailedPrecondition, sentence, {.reason = "WRONG_ANSWER"});
}

PutProfile PutOf(const StoreStep& step) {
  return {.name = step.name,
          .content = ContentOf(step.seed, step.tenant),
          .expected_version = std::nullopt,
          .request_id = absl::StrCat("r", step.seed),
          .payload_digest = std::string(64, '1')};
}

// True if the step finds what it needs.
bool Finds(const StoreState& state, const StoreStep& step) {
  if (step.kind == StoreStep::kPut) return true;
  const auto found = state.find({step.tenant, step.name});
  if (found == state.end() || found->second.versions.empty()) return false;
  if (step.kind == StoreStep::kDelete) return true;
  return step.version == 0 ? found->second.aliases.contains(step.alias)
                           : found->second.versions.contains(step.version);
}

absl::Status CheckRecord(const ProfileRecord& record, const Tenant& tenant, const std::string& name,
                         uint32_t seed) {
  if (record.tenant == tenant && record.name == name && record.content == ContentOf(seed, tenant)) {
    return absl::OkStatus();
  }
  return Wrong(absl::StrCat("not what was put as ", tenant.id(), "/", name, "@", record.version));
}

absl::Status ObserveName(const ProfileStore& store, const Tenant& tenant, const std::string& name,
                         ModelProfile& model) {
  const auto list = store.ListVersions(tenant, name, {.size = 1000, .token = ""});
  if (!list.ok()) return list.status();
  for (const ProfileSummary& summary : list->profiles) {
    const auto record = store.Get(tenant, name, summary.version);
    if (!record.ok()) return record.status();
    uint32_t seed = 0;
    const auto label = (*record)->content.labels.find("seed");
    if (label == (*record)->content.labels.end() || !absl::SimpleAtoi(label->second, &seed)) {
      return Wrong("a profile without its seed");
    }
    if (absl::Status s = CheckRecord(**record, tenant, name, seed); !s.ok()) return s;
    model.versions[summary.version] = seed;
  }
  const auto aliases = store.ListAliases(tenant, name);
  if (!aliases.ok()) return aliases.status();
  for (const ProfileAlias& alias : *aliases) {
    model.aliases[alias.alias] = alias.version;
    const auto named = store.Get(tenant, name, alias.alias);
    if (!named.ok()) return named.status();
    if ((*named)->version != alias.version) return Wrong("an alias that names another version");
  }
  return absl::OkStatus();
}

}  // namespace

ProfileContent ContentOf(uint32_t seed, const Tenant& owner) {
  ProfileContent content = seed % 5 == 0 ? MakeContent(seed, 32, 64) : MakeContent(seed);
  content.labels["owner"] = owner.id();
  return content;
}

StoreStep DrawStep(std::mt19937& random, const std::vector<Tenant>& tenants) {
  static const std::vector<std::string> kNames = {"legal", "medical", "code", "chat"};
  StoreStep step{.tenant = tenants[random() % tenants.size()],
                 .name = kNames[random() % kNames.size()]};
  const uint32_t kind = random() % 10;
  step.kind = kind < 6 ? StoreStep::kPut : kind < 9 ? StoreStep::kSetAlias : StoreStep::kDelete;
  step.seed = static_cast<uint32_t>(random());
  step.alias = random() % 2 == 0 ? "stable" : "canary";
  step.version = static_cast<int64_t>(random() % 6);
  return step;
}

StoreState After(StoreState state, const StoreStep& step) {
  if (!Finds(state, step)) return state;
  ModelProfile& profile = state[{step.tenant, step.name}];
  if (step.kind == StoreStep::kPut) {
    profile.versions[++profile.last] = step.seed;
  } else if (step.kind == StoreStep::kDelete) {
    profile = {.last = profile.last, .versions = {}, .aliases = {}};
  } else if (step.version == 0) {
    profile.aliases.erase(step.alias);
  } else {
    profile.aliases[step.alias] = step.version;
  }
  return state;
}

StoreState Visible(StoreState state) {
  std::erase_if(state, [](const auto& entry) { return entry.second.versions.empty(); });
  for (auto& [key, profile] : state) profile.last = 0;
  return state;
}

absl::Status Take(const StoreStep& step, ProfileStore& store, StoreState& state) {
  const StoreState after = After(state, step);
  absl::Status status;
  if (step.kind == StoreStep::kPut) {
    const auto stored = store.Put(step.tenant, PutOf(step));
    status = stored.status();
    if (status.ok()) {
      if (absl::Status s = CheckRecord(**stored, step.tenant, step.name, step.seed); !s.ok()) {
        return s;
      }
      const int64_t version = after.at({step.tenant, step.name}).last;
      if ((*stored)->version != version) {
        return Wrong(absl::StrCat("version ", (*stored)->version, ", not ", version));
      }
    }
  } else if (step.kind == StoreStep::kSetAlias) {
    status = store.SetAlias(step.tenant, {step.name, step.alias, step.version, {}});
  } else {
    status = store.Delete(step.tenant, step.name, std::nullopt);
  }
  const bool finds = Finds(state, step);
  if (status.ok() && !finds) return Wrong("found what is not there");
  if (absl::IsNotFound(status)) {
    return finds ? Wrong("not found what is there") : absl::OkStatus();
  }
  if (status.ok()) state = after;
  return status;
}

absl::StatusOr<StoreState> Observe(const ProfileStore& store, const std::vector<Tenant>& tenants) {
  StoreState state;
  for (const Tenant& tenant : tenants) {
    const auto list = store.List(tenant, {.size = 1000, .token = ""});
    if (!list.ok()) return list.status();
    for (const ProfileSummary& summary : list->profiles) {
      ModelProfile& profile = state[{tenant, summary.name}];
      if (absl::Status s = ObserveName(store, tenant, summary.name, profile); !s.ok()) return s;
      if (profile.versions.rbegin()->first != summary.version) return Wrong("a list of old ones");
    }
  }
  return state;
}

std::string Describe(const StoreState& state) {
  std::string text;
  for (const auto& [key, profile] : state) {
    absl::StrAppend(&text, key.first.id(), "/", key.second, ":");
    for (const auto& [version, seed] : profile.versions) {
      absl::StrAppend(&text, " ", version, "=", seed);
    }
    for (const auto& [alias, version] : profile.aliases) {
      absl::StrAppend(&text, " ", alias, "->", version);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace eta
