# Toolchain of `./run portable`: zig's clang, by the wrappers that `run` writes into the build
# folder. It brings its own glibc headers and C++ library, so nothing of /usr may be searched but
# what was linked into <build>/include.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER ${CMAKE_BINARY_DIR}/bin/cc)
set(CMAKE_CXX_COMPILER ${CMAKE_BINARY_DIR}/bin/c++)
set(CMAKE_AR ${CMAKE_BINARY_DIR}/bin/ar)
set(CMAKE_RANLIB ${CMAKE_BINARY_DIR}/bin/ranlib)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
include_directories(SYSTEM ${CMAKE_BINARY_DIR}/include)
add_link_options(-s)
