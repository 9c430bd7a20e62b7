// One query that sees two equal keys: the output is the mean of their values.
#include <attend/attention.hpp>
#include <cstdio>

int main() {
  float q[] = {1}, k[] = {1, 1}, v[] = {2, 4}, o[] = {0};
  const auto view = [](float* data, std::int64_t rows) {
    return attend::Tensor::bhsd(data, attend::DType::kF32, {1, 1, rows, 1});
  };
  attend::forward(view(q, 1), view(k, 2), view(v, 2), view(o, 1));
  try {  // an exception thrown inside the library arrives as its own type
    attend::forward(view(q, 1), view(k, 2), view(v, 1), view(o, 1));
    return 1;
  } catch (const attend::Error& error) {
    std::printf("attend %s: o = %g; %s\n", attend::version(), o[0], error.what());
  }
  if (o[0] != 3) return 1;
  std::puts("outside program: ok");
}
