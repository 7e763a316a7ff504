#include "calibration/profiles/store/change_feed.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <list>
#include <mutex>
#include <utility>

#include "engine/base/out_of_memory.h"

namespace eta {

struct ChangeFeed::Watchers {
  std::mutex mutex;  // held during calls, so that a watch that has ended is not called
  std::list<ProfileWatcher> list;
};

class ChangeFeed::Entry final : public ProfileWatch {
 public:
  Entry(std::shared_ptr<Watchers> watchers, ProfileWatcher watcher)
      : watchers_(std::move(watchers)) {
    const std::lock_guard lock(watchers_->mutex);
    place_ = watchers_->list.insert(watchers_->list.end(), std::move(watcher));
  }
  ~Entry() override {
    const std::lock_guard lock(watchers_->mutex);
    watchers_->list.erase(place_);
  }

 private:
  std::shared_ptr<Watchers> watchers_;
  std::list<ProfileWatcher>::iterator place_;
};

ChangeFeed::ChangeFeed() : watchers_(std::make_shared<Watchers>()) {}

std::unique_ptr<ProfileWatch> ChangeFeed::Watch(ProfileWatcher watcher) {
  return std::make_unique<Entry>(watchers_, std::move(watcher));
}

void ChangeFeed::Tell(const ProfileChange& change) {
  const std::lock_guard lock(watchers_->mutex);
  for (const ProfileWatcher& watcher : watchers_->list) watcher(change);
}

PollThread::PollThread(std::chrono::milliseconds interval, std::function<void()> look,
                       std::function<int()> news)
    : stop_event_(eventfd(0, EFD_CLOEXEC)),
      thread_([this, interval, look = std::move(look), news = std::move(news)] {
        while (true) {
          std::array<pollfd, 2> waits = {pollfd{stop_event_, POLLIN, 0},
                                         pollfd{news(), POLLIN, 0}};  // -1 is passed over
          const int ready = poll(waits.data(), waits.size(), static_cast<int>(interval.count()));
          if (ready > 0 && waits[0].revents != 0) return;
          (void)CatchOutOfMemory([&look] {
            look();
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
