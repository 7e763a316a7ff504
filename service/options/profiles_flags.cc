// Flags of stored profiles, and of the calibrations that make them.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddProfileFlags(CLI::App& app, Flags& flags) {
  ServerOptions& server = flags.server;
  app.add_option("--profile_store", flags.profile_store,
                 "Store of threshold profiles: a SQLite file (PATH or sqlite:PATH), a PostgreSQL "
                 "database (postgresql://...) or a read-only folder (dir:PATH). Default: none, and "
                 "there are no profiles")
      ->type_name("URL");
  app.add_option(
         "--profile_store_file", flags.profile_store_file,
         "File whose only line is the value of --profile_store, to keep a password out of the "
         "command line and the environment. It is refused if every user of the host may read it")
      ->excludes("--profile_store")
      ->type_name("FILE");
  app.add_option(
         "--default_profile", server.default_profile,
         "Profile of requests that name no attention mode, where their tenant has it and the store "
         "can give it: NAME, NAME@VERSION or NAME@ALIAS. Default: none")
      ->type_name("PROFILE");
  AddDuration(
      app, "--profile_staleness", server.profile_staleness,
      "Time for which profiles, and that there is no such profile, stay in use while the "
      "store cannot be read. After it requests that name them are refused with UNAVAILABLE");
  AddCountOrNone(
      app, "--keep_versions", flags.profile_store_options.keep_versions,
      "Number of versions that are kept of each profile and model: a new version deletes "
      "the oldest beyond it. Versions that an alias names stay and do not count. Staged "
      "versions are counted by themselves. 0: all are kept");
  AddCount(app, "--max_calibrations", server.max_calibrations,
           "Largest number of calibrations at a time. More are refused with RESOURCE_EXHAUSTED");
  AddDuration(
      app, "--calibration_orphan_timeout", server.calibration_orphan_timeout,
      "Time for which a calibration with a request_id goes on after its last caller has left, so "
      "that a call with the same request_id finds it. 0: it ends at once");
  AddCount(app, "--max_calibration_tokens", server.max_calibration_tokens,
           "Largest number of tokens of the samples of one calibration");
}

}  // namespace eta
