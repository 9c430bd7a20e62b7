// Data in host memory that the ranks of a machine share. Each rank has a board, and a mailbox for messages of each
// other rank. Zeros, as the operating system initialises memory, are an empty mailbox and an unwritten board.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver/driver_types.hpp"

namespace attend::ring {

/// Location of a rank's messages. The generation changes each time the memory grows; 0: no memory.
struct MemoryOfRank {
  std::uint64_t generation = 0;
  cuda::DevicePointer data = 0;  ///< address for ranks of the same process
  cuda::IpcHandle handle = {};   ///< handle for other processes
};

/// Data that a rank sends when links are made.
struct Introduction {
  static constexpr std::size_t kNameBytes = 64;

  /// equal for ranks of one process. Random, because no number of the operating system is reliably unique
  std::uint64_t process = 0;
  std::array<char, kNameBytes> machine = {};  ///< equal for ranks of one machine; empty: the rank requests no links
  std::array<char, kNameBytes> block = {};    ///< name of the rank's shared memory
  int device = 0;                             ///< device number within the process
  cuda::IpcHandle ready_handle = {}, copied_handle = {};
  MemoryOfRank probe = {};  ///< memory to test whether the other ranks can access it
};

/// Mailbox of one rank, written by another rank.
struct alignas(64) Mailbox {
  enum State : std::uint32_t { kEmpty, kPosted, kBeingCopied, kTaken };

  /// the fields below belong to the receiver while it copies, otherwise to the sender
  std::atomic<std::uint32_t> state;
  std::uint64_t offset, bytes;  ///< place in the sender's memory
  MemoryOfRank memory;

  std::atomic<std::uint64_t> opened;  ///< generation of the sender's memory that the receiver has open; 0: none
};

/// Board of one rank, read by all ranks.
struct alignas(64) RankBoard {
  static constexpr std::size_t kRoom = 16 << 10;
  static constexpr std::size_t kTextBytes = 512;

  std::atomic<std::uint32_t> has_failed;
  std::array<char, kTextBytes> why;  ///< valid with has_failed: the reason, terminated by 0

  /// The current and the previous piece of a message to all ranks. Two are enough, because each rank waits for the
  /// pieces of all others and no rank falls further behind.
  std::atomic<std::uint64_t> num_pieces;
  std::array<std::array<std::byte, kRoom>, 2> pieces;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace attend::ring
