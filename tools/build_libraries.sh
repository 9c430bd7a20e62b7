#!/usr/bin/env bash
# Installs the libraries needed to compile attend on systems without packages of them (the manylinux containers): static
# Highway, and the headers of fmt and xxHash. The versions are those of Debian 12, which are tested.
#
#   tools/build_libraries.sh [PREFIX]      default /usr/local; CXX: the compiler
#
# ARCHIVES names a folder of archives for a machine without network: highway.tar.gz, fmt.tar.gz, xxhash.tar.gz. The
# script fails if an archive has an unknown checksum.
set -euo pipefail

prefix=${1:-/usr/local}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# unpack NAME SHA256 URL
unpack() {
  local archive=$folder/$1.tar.gz
  if [[ -n ${ARCHIVES:-} ]]; then
    cp "$ARCHIVES/$1.tar.gz" "$archive"
  else
    curl --fail --silent --show-error --location --retry 3 --output "$archive" "$3"
  fi
  echo "$2  $archive" | sha256sum --check --quiet
  mkdir "$folder/$1"
  tar -xzf "$archive" -C "$folder/$1" --strip-components=1
}

# install_with_cmake NAME OPTIONS...
install_with_cmake() {
  cmake -S "$folder/$1" -B "$folder/$1/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${@:2}" >/dev/null
  cmake --build "$folder/$1/build" --parallel "$(nproc)" >/dev/null
  cmake --install "$folder/$1/build" >/dev/null
}

# install_license DEBIAN_PACKAGE FILE: installs it where python/CMakeLists.txt expects it
install_license() {
  install -D -m 644 "$2" "$prefix/share/doc/$1/copyright"
}

unpack highway 566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e \
  https://github.com/google/highway/archive/1.0.3.tar.gz
unpack fmt 5dea48d1fcddc3ec571ce2058e13910a0d4a6bab4cc09a809d8b1dd1c88ae6f2 \
  https://github.com/fmtlib/fmt/archive/9.1.0.tar.gz
unpack xxhash 3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c \
  https://github.com/Cyan4973/xxHash/archive/v0.8.1.tar.gz

install_with_cmake highway -DHWY_FORCE_STATIC_LIBS=ON -DHWY_ENABLE_CONTRIB=OFF -DHWY_ENABLE_EXAMPLES=OFF \
  -DHWY_ENABLE_TESTS=OFF -DBUILD_TESTING=OFF
# CMake needs this file to find Highway. Debian's package has it; Highway itself has it only from the next version on.
mkdir -p "$prefix/lib/cmake/hwy"
cat >"$prefix/lib/cmake/hwy/hwy-config.cmake" <<END
add_library(hwy::hwy STATIC IMPORTED)
set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION "$prefix/lib/libhwy.a"
  INTERFACE_INCLUDE_DIRECTORIES "$prefix/include" INTERFACE_COMPILE_DEFINITIONS HWY_STATIC_DEFINE)
END

install_with_cmake fmt -DFMT_TEST=OFF -DFMT_DOC=OFF
install -D -m 644 "$folder/xxhash/xxhash.h" "$prefix/include/xxhash.h"

install_license libhwy1 "$folder/highway/LICENSE"
install_license libfmt9 "$folder/fmt/LICENSE.rst"
install_license libxxhash0 "$folder/xxhash/LICENSE"
