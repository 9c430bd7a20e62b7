#include "exchange.hpp"

#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "attend/error.hpp"

namespace attend::python {
namespace {

/// DLPack's exchange table, in the layout of DLPack 1.3. Only the functions that this file calls are declared with
/// their exact types.
struct ExchangeTable {
  struct {
    std::uint32_t major, minor;
    void* older_table;
  } header;
  void (*allocate)();
  void (*managed_tensor_of)();
  void (*object_of_managed_tensor)();
  // Function that returns 0, or -1 if it has set a Python exception. The pointer may be null.
  int (*tensor_of)(void* object, nb::dlpack::dltensor* tensor);
  void (*current_stream)();
};

constexpr std::uint32_t kMajor = 1;  // the layout of the table may change with the major version

const ExchangeTable* table_of(PyTypeObject* type) {
  const nb::object capsule = nb::getattr(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__", nb::object());
  if (!capsule.is_valid() || PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return table->header.major == kMajor && table->tensor_of != nullptr ? table : nullptr;
}

/// Returns the exchange table of an object's type, or null if there is none. The first call for a type looks up the
/// table and stores it in `tables`. The GIL protects `tables`.
const ExchangeTable* known_table(nb::handle object) {
  // Never destroyed, because calls may occur after the interpreter ends.
  static auto* tables = new std::unordered_map<PyTypeObject*, const ExchangeTable*>();
  static std::pair<PyTypeObject*, const ExchangeTable*> last;  // most objects have the same type as the object before
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (last.first == type) return last.second;
  auto found = tables->find(type);
  if (found == tables->end()) {
    // Runs Python code, so another thread may enter this function meanwhile.
    const ExchangeTable* table = table_of(type);
    bool is_new = false;
    std::tie(found, is_new) = tables->try_emplace(type, table);
    // Keeps the type alive, so that another type cannot get the same address.
    if (is_new) Py_INCREF(reinterpret_cast<PyObject*>(type));
  }
  last = *found;
  return last.second;
}

}  // namespace

bool has_exchange_table(nb::handle object) {
  return known_table(object) != nullptr;
}

nb::dlpack::dltensor exchanged_tensor(nb::handle object) {
  const ExchangeTable* table = known_table(object);
  if (table == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                nb::cast<std::string>(nb::str(nb::type_name(object.type()))) + ": not an array that attend can read");
  }
  nb::dlpack::dltensor tensor;
  if (table->tensor_of(object.ptr(), &tensor) != 0) {
    PyErr_Clear();  // removes the framework's message, which contains a long C++ stack trace
    const auto text = [](const nb::object& x) { return nb::cast<std::string>(nb::str(x)); };
    throw Error(ErrorCode::kInvalidArgument,
                text(nb::type_name(object.type())) + " of dtype " + text(nb::getattr(object, "dtype", nb::none())) +
                    ": not a tensor that DLPack can describe, allowed dense ones of f32, f16, bf16, f64, or bool");
  }
  return tensor;
}

bool try_exchange(nb::handle object, nb::dlpack::dltensor& tensor) {
  const ExchangeTable* table = known_table(object);
  if (table == nullptr) return false;
  if (table->tensor_of(object.ptr(), &tensor) == 0) return true;
  PyErr_Clear();
  return false;
}

}  // namespace attend::python
