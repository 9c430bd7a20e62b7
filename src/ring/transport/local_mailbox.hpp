// Layout of the host memory that the ranks of a machine share. Each rank has a board, to which it writes data for all
// ranks. For each other rank, it has a mailbox, in which that rank posts messages. Memory filled with zeros is a valid
// empty mailbox and a valid board without data.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver/driver_types.hpp"

namespace attend::ring {

/// Location of the memory that holds a rank's messages. The generation changes each time the memory is reallocated; 0
/// means no memory.
struct MemoryOfRank {
  std::uint64_t generation = 0;
  cuda::DevicePointer data = 0;  ///< address, valid for ranks of the same process
  cuda::IpcHandle handle = {};   ///< handle for other processes
};

/// Data that each rank sends to all others when links are made.
struct Introduction {
  static constexpr std::size_t kNameBytes = 64;

  /// Number that is equal for all ranks of one process. It is random, because process ids are not unique across
  /// containers.
  std::uint64_t process = 0;
  std::array<char, kNameBytes> machine = {};  ///< equal for ranks of one machine; empty if the rank requests no links
  std::array<char, kNameBytes> block = {};    ///< name of the rank's shared host memory
  int device = 0;                             ///< device number within the process
  cuda::IpcHandle ready_handle = {}, copied_handle = {};
  MemoryOfRank probe = {};  ///< small piece of memory that the other ranks open as a test
};

/// Mailbox of one rank for messages from one other rank, which writes it.
struct alignas(64) Mailbox {
  enum State : std::uint32_t { kEmpty, kPosted, kBeingCopied, kTaken };

  /// The fields below may be accessed by the receiver while it copies, and otherwise by the sender.
  std::atomic<std::uint32_t> state;
  std::uint64_t offset, bytes;  ///< place of the message in the sender's memory
  MemoryOfRank memory;

  /// Generation of the sender's memory that the receiver has open; 0 if it has none open.
  std::atomic<std::uint64_t> opened;
};

/// Board of one rank. The rank writes it, and all ranks read it.
struct alignas(64) RankBoard {
  static constexpr std::size_t kRoom = 16 << 10;
  static constexpr std::size_t kTextBytes = 512;

  std::atomic<std::uint32_t> has_failed;
  std::array<char, kTextBytes> why;  ///< reason of the failure, terminated by a zero byte; valid if has_failed is set

  /// The current and the previous piece of a message to all ranks. Two pieces are enough, because each rank waits for
  /// the pieces of all other ranks before it writes its next piece. No rank is therefore more than one piece behind.
  std::atomic<std::uint64_t> num_pieces;
  std::array<std::array<std::byte, kRoom>, 2> pieces;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace attend::ring
