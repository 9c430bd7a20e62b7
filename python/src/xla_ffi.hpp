// The C structs that XLA's foreign function interface passes to a custom call. The structs are declared here without
// XLA's headers.
//
// The extension module can therefore be built without JAX, and one build supports every JAX since 0.4.35. This file
// declares only the fields and functions of interface version 0.1. These fields and functions are the same in the
// headers of jaxlib 0.4.35, 0.10.2 and 0.12.0.1, which have the interface versions 0.1, 0.3 and 0.5. XLA adds new
// fields only at the end of structs, and new functions only at the end of the function table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attend::python::xla {

/// The interface version that this module uses. XLA refuses a handler if the handler's version is newer than its own.
inline constexpr int kMajor = 0, kMinor = 1;

struct Error;    // opaque type of XLA
struct Context;  // opaque type of XLA

/// One element of a linked list that XLA attaches to a struct.
struct Extension {
  std::size_t struct_size;
  int type;  ///< MetadataExtension::kType, or a type that this module does not use
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension;
  int major, minor;
};

/// Properties of a handler. XLA queries them when it registers a handler and before it runs the handler.
struct Metadata {
  std::size_t struct_size;
  Version version;       // set by the handler
  std::uint32_t traits;  // set by the handler; a combination of trait bits
};

struct MetadataExtension {
  static constexpr int kType = 1;
  Extension base;
  Metadata* metadata;
};

/// Trait bit: every call of the handler launches the same work on the stream, so XLA may record the call in a CUDA
/// graph.
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
  void* stream;  // set by XLA; a CUstream
};

/// The first functions of XLA's function table. The members after stream_get are not declared.
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

/// The element types that arrays of this module's calls can have.
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

/// A contiguous array in row-major order.
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

/// The arguments or the results of a call. An entry is a Buffer if its type is kBuffer.
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
  void** entries;  ///< Scalar* or ByteSpan*, depending on the type
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
