// At start: which tenants have the server's default profile (--default_profile), so that an
// operator hears of one that nobody has before requests go without it.
#pragma once

#include <set>
#include <string>

#include "engine/base/tenant.h"
#include "service/log/log.h"
#include "service/profiles/profile_cache.h"

namespace eta {

// Asks the cache for the profile of each of the tenants, the only ones that are known, so that it
// is in memory from here on. Logs "default_profile": a warning where none has it, or where the
// store cannot say. Waits for the store, for at most the cache's patience where that is in trouble.
void LogDefaultProfile(const ProfileReference& reference, const std::string& text,
                       const std::set<Tenant>& tenants, ProfileCache& profiles, Log& log);

}  // namespace eta
