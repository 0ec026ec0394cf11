# How xfer's own targets are made: one set of warnings, one include root, one way to add a test.

add_library(xfer_flags INTERFACE)
target_include_directories(xfer_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(xfer_flags INTERFACE
  -Wall -Wextra -Werror -Wnon-virtual-dtor -Woverloaded-virtual -Wunused-result -Wno-missing-field-initializers)
if(XFER_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(XFER_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
  # libstdc++'s atomic_thread_fence is not modelled by ThreadSanitizer; gcc warns of each use.
  add_compile_options(-Wno-tsan)
  # See common/base/tsan_absl.cc.
  find_path(XFER_ABSL_INCLUDE absl/base/options.h REQUIRED)
  file(STRINGS ${XFER_ABSL_INCLUDE}/absl/base/options.h line REGEX "define ABSL_OPTION_INLINE_NAMESPACE_NAME")
  string(REGEX REPLACE ".*NAMESPACE_NAME +" "" XFER_ABSL_NS "${line}")
  string(LENGTH "${XFER_ABSL_NS}" length)
  set(XFER_ABSL_NS ${length}${XFER_ABSL_NS})
  file(READ ${PROJECT_SOURCE_DIR}/common/base/tsan_absl.cc source)
  string(REGEX MATCHALL "(XFER_[A-Z_]+|REAL|REAL_CONST)\\([0-9]+[A-Z][A-Za-z0-9_]*" names "${source}")
  foreach(name ${names})
    string(REGEX REPLACE ".*\\(" "" symbol ${name})
    if(name MATCHES "CONST|NOTIFICATION")
      set(prefix _ZNK4absl)
    else()
      set(prefix _ZN4absl)
    endif()
    list(APPEND XFER_TSAN_WRAPS -Wl,--wrap=${prefix}${XFER_ABSL_NS}${symbol})
  endforeach()
  list(REMOVE_DUPLICATES XFER_TSAN_WRAPS)
  # -u: shared libraries of Abseil refer to the wrapped names too, whether or not our objects do.
  add_link_options(${XFER_TSAN_WRAPS} -Wl,-u,__wrap__ZN4absl${XFER_ABSL_NS}5Mutex4LockEv)
elseif(XFER_SANITIZE)
  message(FATAL_ERROR "XFER_SANITIZE is \"${XFER_SANITIZE}\"; it takes address, thread, or nothing")
endif()

# Of every test; matters under the sanitizers only.
set(XFER_TEST_ENVIRONMENT
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:halt_on_error=1"
  "ASAN_OPTIONS=detect_stack_use_after_return=1"
  "UBSAN_OPTIONS=print_stacktrace=1")

# xfer_library(NAME SRCS a.cc ... DEPS target ...)
function(xfer_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE xfer_flags)
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
  endif()
endfunction()

# xfer_binary(NAME SRCS a.cc ... DEPS target ...): an installed program.
function(xfer_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} xfer_flags)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# xfer_test(NAME SRCS a.cc ... DEPS target ... [TIMEOUT seconds]): a GoogleTest program run by ctest.
function(xfer_test name)
  if(NOT XFER_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main xfer_flags)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${XFER_TEST_ENVIRONMENT}")
endfunction()

# xfer_bench(NAME SRCS a.cc ... DEPS target ...): a benchmark program; built, never run by ctest.
function(xfer_bench name)
  if(NOT XFER_BENCH)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} benchmark::benchmark xfer_flags)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()
