// What XLA's foreign function interface hands to a custom call: its C structs, by our own declarations.
//
// The module needs neither JAX nor its headers to build, and one build serves every JAX from 0.4.35 on. Only the parts
// that version 0.1 of the interface has are declared here. The headers of jaxlib 0.4.35, 0.10.2 and 0.12.0.1 (versions
// 0.1, 0.3 and 0.5) agree on all of them: XLA adds fields at the end of a struct and functions at the end of the table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attend::python::xla {

/// The version that this module says it was built for. XLA refuses handlers of a version that is newer than its own.
inline constexpr int kMajor = 0, kMinor = 1;

struct Error;    // XLA's own
struct Context;  // likewise

/// A linked list that XLA appends to a struct.
struct Extension {
  std::size_t struct_size;
  int type;  ///< kMetadata, or one that we do not know
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension;
  int major, minor;
};

/// What XLA asks of a handler when it is registered, and before it is run.
struct Metadata {
  std::size_t struct_size;
  Version version;       // out
  std::uint32_t traits;  // out, of Trait
};

struct MetadataExtension {
  static constexpr int kType = 1;
  Extension base;
  Metadata* metadata;
};

/// The calls of a handler put the same work on the stream each time, so that CUDA graphs may hold it.
inline constexpr std::uint32_t kCommandBufferCompatible = 1;

enum class ErrorCode : int { kInvalidArgument = 3, kUnimplemented = 12, kInternal = 13 };

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  ErrorCode code;
};

struct StreamGetArgs {
  std::size_t struct_size;
  Extension* extension;
  Context* context;
  void* stream;  // out: a CUstream
};

/// The beginning of XLA's table of functions.
struct Api {
  std::size_t struct_size;
  Extension* extension;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void (*error_get_message)(void*);
  void (*error_destroy)(void*);
  Error* (*handler_register)(void*);
  Error* (*stream_get)(StreamGetArgs*);
};

/// Element types, as many as are passed to the calls of this module.
enum class DataType : int {
  kPred = 1,
  kS32 = 4,
  kS64 = 5,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
};

/// A dense row-major array.
struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

/// Arguments or results: every entry is a Buffer if its type says so.
struct Buffers {
  static constexpr int kBuffer = 1;
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  void** entries;
};

struct Attributes {
  static constexpr int kScalar = 3, kString = 4;
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  ByteSpan** names;
  void** entries;  ///< Scalar* or ByteSpan*
};

enum class Stage : int { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8, "the offsets below are those of 64-bit machines");
static_assert(offsetof(Metadata, traits) == 32 && offsetof(Api, error_create) == 48);
static_assert(offsetof(Api, stream_get) == 80 && offsetof(Buffer, dims) == 40);
static_assert(offsetof(CallFrame, arguments) == 40 && offsetof(CallFrame, attributes) == 120);

}  // namespace attend::python::xla
