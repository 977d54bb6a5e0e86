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
  include(GoogleTest)
endif()
if(GPUSHM_BENCH)
  find_package(benchmark REQUIRED)
endif()

# gpushm_library(NAME SOURCES a.cc ... DEPS target ...): the static library of one folder.
function(gpushm_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC gpushm_options ${ARG_DEPS})
endfunction()

# gpushm_binary(NAME SOURCES ... DEPS ...)
function(gpushm_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
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

# gpushm_test(NAME SOURCES ... DEPS ... [LABELS ...] [TIMEOUT seconds] [ENV K=V ...] [OPTIMISED]): a
# GoogleTest program, one ctest entry. Labels choose suites: unit (default), crash, namespace,
# conformance ... Not optimised it builds in half the time; libraries that it tests are as ever.
function(gpushm_test name)
  if(NOT GPUSHM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "OPTIMISED" "TIMEOUT" "SOURCES;DEPS;LABELS;ENV" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(CMAKE_CROSSCOMPILING)
    math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")  # The emulator needs that much longer.
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gpushm_options ${ARG_DEPS} GTest::gtest_main GTest::gmock)
  if(NOT ARG_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
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

# gpushm_bench(NAME SOURCES ... DEPS ...): a Google Benchmark program.
function(gpushm_bench name)
  if(NOT GPUSHM_BENCH)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gpushm_options ${ARG_DEPS} benchmark::benchmark)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()
