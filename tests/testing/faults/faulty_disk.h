// A disk under SQLite that fails on command: power cuts that lose unsynced data, kills, I/O errors,
// a full disk.
//
// A power cut leaves of every file the bytes of its last sync. Each sector (512 bytes) written
// since is kept, lost, or torn between old and new; where the file grew, it may be zeros or garbage
// too. A new file's name is safe with the file's first sync, a removal once the folder was synced;
// before that, either state may come back. Bytes that were not written to stay. SQLite assumes such
// a disk (sqlite.org/atomiccommit.html, SQLITE_IOCAP_POWERSAFE_OVERWRITE).
//
// A failed sync loses the data that it should have kept. Later syncs do not bring it back, but
// reads still see it until the power goes, as with Linux's page cache.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

struct sqlite3_vfs;

namespace eta {

enum class DiskFault {
  kPowerCut,   // power ends during the operation
  kKill,       // the process ends; its files stay as it saw them
  kIoError,    // one operation fails
  kIoErrors,   // that operation fails, and all after it
  kReadError,  // one read fails
  kFull,       // all writes fail from there on
};

// Thread-safe. While it lives it is SQLite's default VFS, over real files.
class FaultyDisk {
 public:
  explicit FaultyDisk(uint32_t seed);
  ~FaultyDisk();
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  // Arms a fault at `operation`, counted from 1 as of now. It counts writes, truncations, syncs,
  // removals and new files; for kReadError it counts reads.
  void Arm(DiskFault fault, int64_t operation);
  void Disarm();
  // True if the armed operation came.
  bool struck() const;

  // Restarts after a power cut or a kill. REQUIRES: all handles are closed. The files become what
  // was left of them.
  void Restart();

  // From now on syncs report success without syncing.
  void LieAboutSyncs() { lying_ = true; }

 private:
  struct Change {
    std::optional<int64_t> truncated_to;
    int64_t offset = 0;
    std::string bytes;
  };
  struct Inode {
    std::string durable;
    std::vector<Change> pending;  // in order, since the last sync
  };
  struct Name {
    std::shared_ptr<Inode> durable;  // what a power cut finds under the name; null: nothing
    std::shared_ptr<Inode> now;
  };
  struct File;
  struct Methods;
  enum class Answer { kDo, kFail, kFailFull };

  Answer Count(bool read, bool write);
  std::string Survivors(const Inode& inode);
  void Keep(std::string_view bytes, int64_t offset, std::string& image);
  std::shared_ptr<Inode> Track(const std::string& path, bool created);
  void SyncFolder();

  mutable std::mutex mutex_;
  std::mt19937 random_;
  std::map<std::string, Name> names_;
  std::optional<DiskFault> fault_;
  int64_t until_ = 0;
  bool struck_ = false;
  bool dead_ = false;  // true: nothing on the disk changes any more
  bool lying_ = false;
  double keep_ = 0.5;
  sqlite3_vfs* below_ = nullptr;
  std::unique_ptr<sqlite3_vfs> vfs_;
};

}  // namespace eta
