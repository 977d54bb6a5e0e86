# Functions for every folder's CMakeLists.txt: one target for each folder, tests and fuzzers in the
# folder of their module, components of an installation.

find_package(Threads REQUIRED)

add_library(gpushm_options INTERFACE)
target_include_directories(gpushm_options INTERFACE ${PROJECT_SOURCE_DIR})
if(GPUSHM_WERROR)
  target_compile_options(gpushm_options INTERFACE
    -Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Werror)
endif()
if(NOT PROJECT_IS_TOP_LEVEL)
  # The flags of the project around this one come first on the command line.
  target_compile_options(gpushm_options INTERFACE -fexceptions)
  if(NOT GPUSHM_WERROR)
    target_compile_options(gpushm_options INTERFACE -w)
  endif()
endif()
target_link_libraries(gpushm_options INTERFACE Threads::Threads)
if(GPUSHM_SANITIZER)
  target_compile_options(gpushm_options INTERFACE -fsanitize=${GPUSHM_SANITIZER}
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(gpushm_options INTERFACE -fsanitize=${GPUSHM_SANITIZER})
  # For tests that repeat their work less often there.
  target_compile_definitions(gpushm_options INTERFACE GPUSHM_SANITIZED)
endif()
if(GPUSHM_FUZZ AND NOT GPUSHM_TESTS)
  # For the search: coverage in the fuzzed code, not only in the fuzz target.
  target_compile_options(gpushm_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It collects garbage only beyond 1 GiB. Few files need that much, and collecting takes a tenth.
  target_compile_options(gpushm_options INTERFACE --param=ggc-min-heapsize=1048576)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # GCC 12 and 13 report false positives inside std::expected and std::string at -O2.
  target_compile_options(gpushm_options INTERFACE
    -Wno-maybe-uninitialized -Wno-restrict -Wno-dangling-pointer)
  if(GPUSHM_SANITIZER MATCHES "address")
    target_compile_options(gpushm_options INTERFACE -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endif()

# CUDA's and NVML's headers: an installed CUDA Toolkit, or what `./run` fetched into the build
# folder (GPUSHM_CUDA_ROOT). Only headers: the driver is loaded at run time.
set(GPUSHM_CUDA_ROOT "" CACHE PATH "Folder whose include/ holds cuda.h and nvml.h")
find_path(GPUSHM_CUDA_INCLUDE_DIR NAMES cuda.h
  HINTS ${GPUSHM_CUDA_ROOT}/include ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda/include ${PROJECT_SOURCE_DIR}/build/cuda/include)
if(NOT GPUSHM_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h was not found. Run ./run setup, which fetches NVIDIA's headers into "
    "build/cuda, or give -DGPUSHM_CUDA_ROOT=/usr/local/cuda.")
endif()
add_library(gpushm_cuda_headers INTERFACE)
target_include_directories(gpushm_cuda_headers SYSTEM INTERFACE ${GPUSHM_CUDA_INCLUDE_DIR})

if(GPUSHM_TESTS)
  find_package(GTest REQUIRED)
endif()
if(GPUSHM_BENCH)
  find_package(benchmark REQUIRED)
  add_custom_target(gpushm_benchmarks)
endif()

# The compiler reads headers and instantiates templates once for several files of a folder: half the CPU
# time. Whoever edits one file waits longer for it, and may configure with OFF. clang-tidy and the
# sanitizers' builds compile each file by itself, which also shows includes that are missing.
option(GPUSHM_UNITY "Compile up to 8 files of a folder at once" OFF)

if(GPUSHM_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A file's local types are no longer in the compiler's main file, and a name may hide one of another file.
  target_compile_options(gpushm_options INTERFACE -Wno-subobject-linkage -Wno-shadow)
endif()

# gpushm_together(NAME OUT SOURCE ...): sets OUT to files that include up to 8 sources of this folder each,
# and to those of them that have compile options or SKIP_UNITY_BUILD_INCLUSION. (UNITY_BUILD would write the
# path of the tree into them, so that ccache had nothing for a clone elsewhere.)
function(gpushm_together name out)
  set(made ${ARGN})
  if(GPUSHM_UNITY)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    set(made)
    set(included)
    foreach(source IN LISTS ARGN)
      get_source_file_property(options ${source} COMPILE_OPTIONS)
      get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
      if(options OR alone OR IS_ABSOLUTE ${source} OR NOT source MATCHES "[.]cc$")
        list(APPEND made ${source})
      else()
        list(APPEND included "#include \"${folder}/${source}\"\n")
      endif()
    endforeach()
    list(LENGTH included end)
    set(begin 0)
    while(begin LESS end)
      list(SUBLIST included ${begin} 8 text)
      list(JOIN text "" text)
      set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_${begin}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
      list(APPEND made ${file})
      math(EXPR begin "${begin} + 8")
    endwhile()
  endif()
  set(${out} ${made} PARENT_SCOPE)
endfunction()

# gpushm_library(NAME SOURCES a.cc ... DEPS target ...): the static library of one folder.
function(gpushm_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  gpushm_together(${name} sources ${ARG_SOURCES})
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC gpushm_options ${ARG_DEPS})
endfunction()

# gpushm_binary(NAME SOURCES ... DEPS ...)
function(gpushm_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  gpushm_together(${name} sources ${ARG_SOURCES})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE gpushm_options ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# gpushm_install(NAME COMPONENT name): `cmake --install` puts this program into bin/.
function(gpushm_install name)
  cmake_parse_arguments(ARG "" "COMPONENT" "" ${ARGN})
  if(GPUSHM_INSTALL)
    install(TARGETS ${name} COMPONENT ${ARG_COMPONENT} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

# gpushm_test(NAME SOURCES ... DEPS ... [LABELS ...] [TIMEOUT seconds] [ENV K=V ...] [OPTIMISED]
# [ALONE] [TOGETHER]): the GoogleTest cases of these sources, one ctest entry. Labels choose suites: unit
# (default), crash, namespace, conformance ... Not optimised it builds in half the time; libraries that
# it tests are as ever. TOGETHER: no two sources define the same local name, so they may compile at once.
#
# NAME is an object library. One program, tests/ROOM_tests, has all of a room (below sidecar/ and
# tests/, of a folder), and ctest starts it for the cases of an entry (platform/base/testing/main.h). ALONE,
# and everywhere with GPUSHM_TEST_PROGRAMS=each, NAME is a program instead: where only some tests are
# built, they do not need the rest of their room.
set(GPUSHM_TEST_PROGRAMS room CACHE STRING "Test programs: one for each room, or for each test (each)")
function(gpushm_test name)
  if(NOT GPUSHM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "OPTIMISED;ALONE;TOGETHER" "TIMEOUT" "SOURCES;DEPS;LABELS;ENV" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(CMAKE_CROSSCOMPILING)
    math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")  # The emulator needs that much longer.
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set(sources ${ARG_SOURCES})
  if(ARG_TOGETHER)
    gpushm_together(${name} sources ${ARG_SOURCES})
  endif()
  set(program ${name})
  set(arguments)
  if(ARG_ALONE OR GPUSHM_TEST_PROGRAMS STREQUAL "each")
    add_executable(${name} ${sources})
  else()
    add_library(${name} OBJECT ${sources})
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    string(REGEX MATCH "^((sidecar|tests)/)?([^/]+)" room ${folder})
    set(program ${CMAKE_MATCH_3}_tests)
    if(NOT TARGET ${program})
      add_executable(${program})
    endif()
    target_link_libraries(${program} PRIVATE ${name})
    list(FILTER ARG_SOURCES INCLUDE REGEX "_test[.]cc$")
    list(TRANSFORM ARG_SOURCES PREPEND ${folder}/)
    list(JOIN ARG_SOURCES ":" arguments)
    set(arguments --sources=${arguments})
  endif()
  target_link_libraries(${name} PRIVATE gpushm_options ${ARG_DEPS} gpushm_test_main)
  if(NOT ARG_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${program} ${arguments})
  # COST: those that may take longest begin first, so that none is left to run alone.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT}
    LABELS "${ARG_LABELS}" ENVIRONMENT "${ARG_ENV}")
endfunction()

# gpushm_fuzz(NAME SOURCES ... DEPS ... CORPUS dir [RUNS n]): a libFuzzer program. ctest replays the
# kept corpus and then tries mutations of it, always the same ones, RUNS inputs in all (presets asan
# and fuzz). All programs together try more than 10^6. `./run fuzz` searches on from the kept corpus.
function(gpushm_fuzz name)
  if(NOT GPUSHM_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "CORPUS;RUNS" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_RUNS)
    set(ARG_RUNS 120000)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gpushm_options ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  set(new ${PROJECT_BINARY_DIR}/fuzz/new/${name})  # libFuzzer adds inputs to the first folder.
  file(MAKE_DIRECTORY ${new})
  # keep_seed: this build does not measure coverage, so no input would seem worth keeping.
  add_test(NAME ${name} COMMAND ${name} -runs=${ARG_RUNS} -seed=1 -keep_seed=1 -timeout=10
    -rss_limit_mb=2048 ${new} ${ARG_CORPUS})
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 120)
endfunction()

# gpushm_bench(NAME SOURCES ... DEPS ...): a Google Benchmark program, of the target gpushm_benchmarks.
function(gpushm_bench name)
  if(NOT GPUSHM_BENCH)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gpushm_options ${ARG_DEPS} benchmark::benchmark)
  add_dependencies(gpushm_benchmarks ${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()
