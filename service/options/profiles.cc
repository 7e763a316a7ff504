// Flags of stored profiles and of calibrations, which make them.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddProfileFlags(CLI::App& app, Flags& flags) {
  ServerOptions& server = flags.server;
  ProfileQuota& quota = flags.profile_store_options.quota;
  app.add_option("--profile_store", flags.profile_store,
                 "Where threshold profiles live: a file of this host (PATH or sqlite:PATH, made if "
                 "it is not there), a database that replicas share (postgresql://...), or a folder "
                 "of profile files that is only read (dir:PATH). Without one there are no profiles "
                 "and Calibrate is refused")
      ->type_name("URL");
  app.add_option(
         "--profile_store_file", flags.profile_store_file,
         "File whose only line is what --profile_store would be: keeps a database's password out "
         "of the command line and the environment. Refused if every user of the host may read it")
      ->excludes("--profile_store")
      ->type_name("FILE");
  app.add_option(
         "--default_profile", server.default_profile,
         "Profile of requests that name no attention mode, where their tenant has it: NAME, "
         "NAME@VERSION or NAME@ALIAS")
      ->type_name("PROFILE");
  AddDuration(app, "--profile_staleness", server.profile_staleness,
              "Profiles stay in use for this long while the store cannot be read; then requests "
              "with them are refused with UNAVAILABLE");
  AddCount(app, "--max_calibrations", server.max_calibrations,
           "Calibrations at a time; more are refused with RESOURCE_EXHAUSTED");
  AddCountOrNone(app, "--max_tenant_calibrations", server.max_tenant_calibrations,
                 "Calibrations of one tenant at a time, where --tenants says nothing else; 0: as "
                 "many as --max_calibrations");
  AddCount(app, "--max_calibration_tokens", server.max_calibration_tokens,
           "Tokens of all samples of one calibration");
  AddDuration(app, "--default_calibrate_deadline", server.default_calibrate_deadline,
              "Deadline of Calibrate calls that set none");
  AddBytes(app, "--max_calibrate_message_bytes", server.max_calibrate_message_bytes,
           "Largest request message of Calibrate, which carries the samples");
  AddCount(app, "--profile_quota", quota.versions,
           "Stored profile versions of one tenant, where --tenants says nothing else");
  AddBytes(app, "--profile_quota_bytes", quota.bytes,
           "Bytes of stored profiles of one tenant, likewise");
}

}  // namespace eta
