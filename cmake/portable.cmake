# Toolchain of `./run portable`: zig's clang, through wrappers that tools/portable.sh writes into the build
# folder, and which know the target. It has its own glibc headers and C++ library, so /usr must not be
# searched, except for what was linked into <build>/include: headers whose packages would name
# /usr/include.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER ${CMAKE_BINARY_DIR}/bin/cc)
set(CMAKE_CXX_COMPILER ${CMAKE_BINARY_DIR}/bin/c++)
set(CMAKE_AR ${CMAKE_BINARY_DIR}/bin/ar)
set(CMAKE_RANLIB ${CMAKE_BINARY_DIR}/bin/ranlib)
set(CLI11_DIR ${CMAKE_BINARY_DIR}/cli11)
file(WRITE ${CLI11_DIR}/CLI11Config.cmake "
if(NOT TARGET CLI11::CLI11)
  add_library(CLI11::CLI11 INTERFACE IMPORTED)
  target_include_directories(CLI11::CLI11 SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include)
endif()
")
set(nlohmann_json_DIR ${CMAKE_BINARY_DIR}/nlohmann_json)
file(WRITE ${nlohmann_json_DIR}/nlohmann_jsonConfig.cmake "
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json SYSTEM INTERFACE
    ${CMAKE_BINARY_DIR}/include)
endif()
")
add_link_options(-s)
