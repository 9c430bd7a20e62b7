// Extents of a thread's small arrays, for functions whose template parameter is the array type.
#pragma once

namespace attend {

template <class Array>
struct Extent;
template <class Item, int kCount>
struct Extent<Item[kCount]> {
  using Element = Item;
  static constexpr int kLength = kCount;
};

// Numbers of rows and columns of an array type: kM and kN for float[kM][kN].
template <class Array>
constexpr int kRowsOf = Extent<Array>::kLength;
template <class Array>
constexpr int kColumnsOf = Extent<typename Extent<Array>::Element>::kLength;

}  // namespace attend
