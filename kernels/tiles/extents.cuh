// The extents of a thread's small arrays, for functions that take their type as one parameter.
#pragma once

namespace attend {

template <class Array>
struct Extent;
template <class Item, int kCount>
struct Extent<Item[kCount]> {
  using Element = Item;
  static constexpr int kLength = kCount;
};

// Of float[kM][kN]: kM and kN.
template <class Array>
constexpr int kRowsOf = Extent<Array>::kLength;
template <class Array>
constexpr int kColumnsOf = Extent<typename Extent<Array>::Element>::kLength;

}  // namespace attend
