# Whether GPU memory is supported. AUTO: where nvcc is found. The CUDA runtime is linked statically and the driver is
# loaded when it is first needed, so that a program built with CUDA starts on a machine without a driver.
set(XFER_CUDA AUTO CACHE STRING "GPU memory: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE XFER_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT XFER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "XFER_CUDA is \"${XFER_CUDA}\"; it takes AUTO, ON or OFF")
endif()

set(XFER_HAVE_CUDA OFF)
if(XFER_CUDA STREQUAL "ON" AND XFER_SANITIZE)
  message(FATAL_ERROR "XFER_CUDA=ON cannot be built with XFER_SANITIZE=${XFER_SANITIZE}: the sanitizers do not know "
                      "the CUDA driver's mappings; leave one of them out")
endif()
if(NOT XFER_CUDA STREQUAL "OFF" AND NOT XFER_SANITIZE)
  # Machine code for A100 and H100/H200, and the latter's PTX for what comes after them.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # Kernels are written in C++17: CMake 3.25 does not know that nvcc 12 and later take C++20.
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(XFER_HAVE_CUDA ON)
  elseif(XFER_CUDA STREQUAL "ON")
    xfer_missing("nvcc, because XFER_CUDA is ON (or set CUDACXX to where it is, or XFER_CUDA=OFF)" nvidia-cuda-toolkit)
  endif()
endif()
message(STATUS "xfer: GPU memory: ${XFER_HAVE_CUDA}")
