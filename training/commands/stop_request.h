// SIGTERM and SIGINT ask a run to end once the step is done that it is in.
#pragma once

namespace eta::training {

// From here on the first such signal is a request; another one, a second or more later, ends the
// process at once, as it would without this. SIGPIPE is ignored. Call once, before threads begin.
void WatchForStopRequests();

// From any thread.
bool StopRequested();

}  // namespace eta::training
