// Declares the part of ONNX Runtime's C interface that attend uses, so that attend can be built without ONNX Runtime's
// headers. ONNX Runtime's wheels do not contain the headers. The interface is a table of function pointers, which grows
// only at its end. This file declares the types and the positions of the functions in the table.
//
// The positions are those of onnxruntime_c_api.h. If ATTEND_ORT_INCLUDE_DIR names a folder with that header, the build
// compares the positions with the header (check_places.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace attend::ort {

// The types OrtStatus, OrtValue and so on. attend uses only pointers to them.
struct Status;
struct Value;
struct SessionOptions;
struct Domain;
struct KernelContext;
struct KernelInfo;
struct InferContext;
struct Attribute;
struct ShapeInfo;  ///< OrtTensorTypeAndShapeInfo
struct MemoryInfo;
struct Allocator;

/// Corresponds to ONNXTensorElementDataType. The values are those of ONNX.
enum class ElementType : int { kAny = 0, kF32 = 1, kI64 = 7, kBool = 9, kF16 = 10, kF64 = 11, kBF16 = 16 };

/// OrtErrorCode.
enum class ErrorCode : int { kFail = 1, kInvalidArgument = 2, kEngine = 5, kNotImplemented = 9 };

/// OrtCustomOpInputOutputCharacteristic.
enum class Presence : int { kRequired = 0, kOptional = 1 };

inline constexpr int kAttributeInt = 1;        ///< an OrtOpAttrType
inline constexpr std::uint32_t kVersion = 17;  ///< version of the table and of CustomOp that attend uses
/// Version of the table that every release supports. It is used to report an error if a newer table is missing.
inline constexpr std::uint32_t kOldest = 1;

using Table = void* const*;

/// Corresponds to OrtApiBase.
struct Base {
  Table (*get_table)(std::uint32_t version);  ///< returns null if ONNX Runtime is older than `version`
  const char* (*version_text)();
};

/// Describes a function in the table by its type and by its position, counted in pointers.
template <std::size_t kAt, class Type>
struct Function {
  static constexpr std::size_t kPlace = kAt;
  [[nodiscard]] static Type* of(Table table) { return reinterpret_cast<Type*>(table[kAt]); }
};

// Functions that return a Status return null on success. The caller must release any other Status. The names are those
// of ONNX Runtime.
using CreateStatus = Function<0, Status*(ErrorCode, const char* message)>;
using CreateCustomOpDomain = Function<26, Status*(const char* name, Domain**)>;
using CustomOpDomain_Add = Function<27, Status*(Domain*, const struct CustomOp*)>;
using AddCustomOpDomain = Function<28, Status*(SessionOptions*, Domain*)>;
using GetTensorMutableData = Function<51, Status*(Value*, void**)>;
using CreateTensorTypeAndShapeInfo = Function<57, Status*(ShapeInfo**)>;
using SetTensorElementType = Function<58, Status*(ShapeInfo*, ElementType)>;
using SetDimensions = Function<59, Status*(ShapeInfo*, const std::int64_t*, std::size_t count)>;
using GetTensorElementType = Function<60, Status*(const ShapeInfo*, ElementType*)>;
using GetDimensionsCount = Function<61, Status*(const ShapeInfo*, std::size_t*)>;
using GetDimensions = Function<62, Status*(const ShapeInfo*, std::int64_t*, std::size_t count)>;
using GetSymbolicDimensions = Function<63, Status*(const ShapeInfo*, const char**, std::size_t count)>;
using GetTensorTypeAndShape = Function<65, Status*(const Value*, ShapeInfo**)>;
using AllocatorAlloc = Function<75, Status*(Allocator*, std::size_t bytes, void**)>;
using AllocatorFree = Function<76, Status*(Allocator*, void*)>;
using KernelInfoGetAttribute_float = Function<85, Status*(const KernelInfo*, const char* name, float*)>;
using KernelInfoGetAttribute_int64 = Function<86, Status*(const KernelInfo*, const char* name, std::int64_t*)>;
using KernelContext_GetInputCount = Function<88, Status*(const KernelContext*, std::size_t*)>;
using KernelContext_GetOutputCount = Function<89, Status*(const KernelContext*, std::size_t*)>;
using KernelContext_GetInput = Function<90, Status*(const KernelContext*, std::size_t, const Value**)>;
using KernelContext_GetOutput =
    Function<91, Status*(KernelContext*, std::size_t, const std::int64_t* shape, std::size_t rank, Value**)>;
using ReleaseStatus = Function<93, void(Status*)>;
using ReleaseTensorTypeAndShapeInfo = Function<99, void(ShapeInfo*)>;
using ReleaseAllocator = Function<132, void(Allocator*)>;
using GetTensorMemoryInfo = Function<194, Status*(const Value*, const MemoryInfo**)>;
using KernelContext_GetAllocator = Function<253, Status*(const KernelContext*, const MemoryInfo*, Allocator**)>;
using ShapeInferContext_GetInputTypeShape = Function<268, Status*(const InferContext*, std::size_t, ShapeInfo**)>;
using ShapeInferContext_GetAttribute = Function<269, Status*(const InferContext*, const char* name, const Attribute**)>;
using ShapeInferContext_SetOutputTypeShape = Function<270, Status*(const InferContext*, std::size_t, const ShapeInfo*)>;
using SetSymbolicDimensions = Function<271, Status*(ShapeInfo*, const char**, std::size_t count)>;
using ReadOpAttr = Function<272, Status*(const Attribute*, int type, void*, std::size_t bytes, std::size_t* written)>;

/// Corresponds to OrtCustomOp, the interface of an operator. Its functions must not throw.
struct CustomOp {
  std::uint32_t version = kVersion;
  /// Null, because create_kernel_v2 replaces it.
  void* (*create_kernel)(const CustomOp*, Table, const KernelInfo*) = nullptr;
  const char* (*name)(const CustomOp*) = nullptr;
  const char* (*provider)(const CustomOp*) = nullptr;
  ElementType (*input_type)(const CustomOp*, std::size_t) = nullptr;
  std::size_t (*num_inputs)(const CustomOp*) = nullptr;
  ElementType (*output_type)(const CustomOp*, std::size_t) = nullptr;
  std::size_t (*num_outputs)(const CustomOp*) = nullptr;
  void (*compute)(void* kernel, KernelContext*) = nullptr;  ///< superseded by compute_v2
  void (*destroy)(void* kernel) = nullptr;
  Presence (*input_presence)(const CustomOp*, std::size_t) = nullptr;
  Presence (*output_presence)(const CustomOp*, std::size_t) = nullptr;
  int (*input_memory)(const CustomOp*, std::size_t) = nullptr;  ///< an OrtMemType; 0 means memory of the provider
  int (*variadic[4])(const CustomOp*) = {};
  Status* (*create_kernel_v2)(const CustomOp*, Table, const KernelInfo*, void** kernel) = nullptr;
  Status* (*compute_v2)(void* kernel, KernelContext*) = nullptr;
  Status* (*infer_shapes)(const CustomOp*, InferContext*) = nullptr;
  int (*first_version)(const CustomOp*) = nullptr;
  int (*last_version)(const CustomOp*) = nullptr;
  void (*later[4])() = {};  ///< members of version 18, for outputs that replace inputs
};

}  // namespace attend::ort
