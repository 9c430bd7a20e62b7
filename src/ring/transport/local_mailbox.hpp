// What lies in memory that the ranks of a machine share: each has a board, and a mailbox for messages of each other
// rank. Zeros, as the system gives memory, are an empty mailbox and a board that nobody has written on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver/driver_types.hpp"

namespace attend::ring {

/// Where a rank's messages lie. Its memory has another number each time it grows; 0: there is none.
struct MemoryOfRank {
  std::uint64_t generation = 0;
  cuda::DevicePointer data = 0;  ///< for ranks of the same process
  cuda::IpcHandle handle = {};   ///< for others
};

/// What a rank says when links are made.
struct Introduction {
  static constexpr std::size_t kNameBytes = 64;

  std::uint64_t process = 0;  ///< the same for ranks of one process, which nothing of the machine's is sure to be
  std::array<char, kNameBytes> machine = {};  ///< the same for ranks of one machine; empty: no links are wanted
  std::array<char, kNameBytes> block = {};    ///< name of the rank's shared memory
  int device = 0;                             ///< by the process's own count
  cuda::IpcHandle ready_handle = {}, copied_handle = {};
  MemoryOfRank probe = {};  ///< to try whether the others reach it
};

/// Of one rank, written by another.
struct alignas(64) Mailbox {
  enum State : std::uint32_t { kEmpty, kPosted, kBeingCopied, kTaken };

  std::atomic<std::uint32_t> state;  ///< what is below belongs to the receiver while it copies, else to the sender
  std::uint64_t offset, bytes;       ///< in the sender's memory
  MemoryOfRank memory;

  std::atomic<std::uint64_t> opened;  ///< generation of the sender's memory that the receiver has open; 0: none
};

/// Of one rank, read by all.
struct alignas(64) RankBoard {
  static constexpr std::size_t kRoom = 16 << 10;
  static constexpr std::size_t kTextBytes = 512;

  std::atomic<std::uint32_t> has_failed;
  std::array<char, kTextBytes> why;  ///< with has_failed: of what, ends in a zero

  /// A piece of a message to all, and the one before: nobody is further behind, as each waits for everybody's.
  std::atomic<std::uint64_t> num_pieces;
  std::array<std::array<std::byte, kRoom>, 2> pieces;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace attend::ring
