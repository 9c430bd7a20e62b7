// Compares the positions in api.hpp with the table of ONNX Runtime. Compiled only if ATTEND_ORT_INCLUDE_DIR names the
// folder of ONNX Runtime's headers.
#include <cstddef>

#include "onnxruntime_c_api.h"
#include "ort/api.hpp"

#define ATTEND_CHECK_PLACE(name) static_assert(offsetof(OrtApi, name) == attend::ort::name::kPlace * sizeof(void*))

ATTEND_CHECK_PLACE(CreateStatus);
ATTEND_CHECK_PLACE(CreateCustomOpDomain);
ATTEND_CHECK_PLACE(CustomOpDomain_Add);
ATTEND_CHECK_PLACE(AddCustomOpDomain);
ATTEND_CHECK_PLACE(GetTensorMutableData);
ATTEND_CHECK_PLACE(CreateTensorTypeAndShapeInfo);
ATTEND_CHECK_PLACE(SetTensorElementType);
ATTEND_CHECK_PLACE(SetDimensions);
ATTEND_CHECK_PLACE(GetTensorElementType);
ATTEND_CHECK_PLACE(GetDimensionsCount);
ATTEND_CHECK_PLACE(GetDimensions);
ATTEND_CHECK_PLACE(GetSymbolicDimensions);
ATTEND_CHECK_PLACE(GetTensorTypeAndShape);
ATTEND_CHECK_PLACE(AllocatorAlloc);
ATTEND_CHECK_PLACE(AllocatorFree);
ATTEND_CHECK_PLACE(KernelInfoGetAttribute_float);
ATTEND_CHECK_PLACE(KernelInfoGetAttribute_int64);
ATTEND_CHECK_PLACE(KernelContext_GetInputCount);
ATTEND_CHECK_PLACE(KernelContext_GetOutputCount);
ATTEND_CHECK_PLACE(KernelContext_GetInput);
ATTEND_CHECK_PLACE(KernelContext_GetOutput);
ATTEND_CHECK_PLACE(ReleaseStatus);
ATTEND_CHECK_PLACE(ReleaseTensorTypeAndShapeInfo);
ATTEND_CHECK_PLACE(ReleaseAllocator);
ATTEND_CHECK_PLACE(GetTensorMemoryInfo);
ATTEND_CHECK_PLACE(KernelContext_GetAllocator);
ATTEND_CHECK_PLACE(ShapeInferContext_GetInputTypeShape);
ATTEND_CHECK_PLACE(ShapeInferContext_GetAttribute);
ATTEND_CHECK_PLACE(ShapeInferContext_SetOutputTypeShape);
ATTEND_CHECK_PLACE(SetSymbolicDimensions);
ATTEND_CHECK_PLACE(ReadOpAttr);

static_assert(offsetof(OrtCustomOp, KernelComputeV2) == offsetof(attend::ort::CustomOp, compute_v2));
static_assert(offsetof(OrtCustomOp, GetEndVersion) == offsetof(attend::ort::CustomOp, last_version));
static_assert(ORT_API_VERSION >= attend::ort::kVersion);
