#include "calibration/profiles/store/change_feed.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <list>
#include <utility>

#include "engine/base/mutex.h"
#include "engine/base/out_of_memory.h"

namespace eta {

struct ChangeFeed::Watchers {
  Mutex mutex;  // held during calls, so that a watch that has ended is not called
  std::list<ProfileWatcher> list GUARDED_BY(mutex);
};

ChangeFeed::ChangeFeed() : watchers_(std::make_shared<Watchers>()) {}

Lease ChangeFeed::Watch(ProfileWatcher watcher) {
  const MutexLock lock(watchers_->mutex);
  const auto place = watchers_->list.insert(watchers_->list.end(), std::move(watcher));
  return Lease([watchers = watchers_, place] {
    const MutexLock ending(watchers->mutex);
    watchers->list.erase(place);
  });
}

void ChangeFeed::Tell(const ProfileChange& change) {
  const MutexLock lock(watchers_->mutex);
  for (const ProfileWatcher& watcher : watchers_->list) watcher(change);
}

PollThread::PollThread(std::chrono::milliseconds interval, std::function<void()> poll_store,
                       std::function<int()> news)
    : stop_event_(eventfd(0, EFD_CLOEXEC)),
      thread_([this, interval, poll_store = std::move(poll_store), news = std::move(news)] {
        while (true) {
          std::array<pollfd, 2> waits = {pollfd{stop_event_, POLLIN, 0},
                                         pollfd{news(), POLLIN, 0}};  // poll ignores -1
          const int ready = poll(waits.data(), waits.size(), static_cast<int>(interval.count()));
          if (ready > 0 && waits[0].revents != 0) return;
          (void)CatchOutOfMemory([&poll_store] {
            poll_store();
            return absl::OkStatus();
          });
        }
      }) {}

PollThread::~PollThread() {
  eventfd_write(stop_event_, 1);
  thread_.join();
  close(stop_event_);
}

}  // namespace eta
