# Imported targets libtorch::cpu and libtorch::cuda from a LibTorch/PyTorch 2.11 tree.
# TorchConfig.cmake is not used: it runs its own CUDA detection, which fails where there is no GPU, and adds flags.
# Order: -DLIBTORCH_ROOT, $LIBTORCH_ROOT, .deps/torch, the torch package of python3.
set(_osdn_torch_candidates ${LIBTORCH_ROOT} $ENV{LIBTORCH_ROOT} ${CMAKE_SOURCE_DIR}/.deps/torch)
find_program(OSDN_PYTHON3 python3)
if(OSDN_PYTHON3)
  execute_process(
    COMMAND ${OSDN_PYTHON3} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _osdn_torch_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND _osdn_torch_candidates ${_osdn_torch_python})
endif()
set(_osdn_torch_root "")
foreach(_candidate IN LISTS _osdn_torch_candidates)
  if(NOT _osdn_torch_root AND EXISTS ${_candidate}/lib/libtorch_cpu.so AND EXISTS ${_candidate}/include/ATen/ATen.h)
    get_filename_component(_osdn_torch_root ${_candidate} ABSOLUTE)
  endif()
endforeach()
if(NOT _osdn_torch_root)
  message(FATAL_ERROR "LibTorch 2.11 not found. Run scripts/setup.sh, or pass -DLIBTORCH_ROOT=/path/to/torch "
                      "(a folder with include/ and lib/). Looked in: ${_osdn_torch_candidates}")
endif()
file(STRINGS ${_osdn_torch_root}/include/torch/headeronly/version.h _osdn_torch_version
     REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE "[^0-9;]" "" OSDN_TORCH_VERSION "${_osdn_torch_version}")
string(REPLACE ";" "." OSDN_TORCH_VERSION "${OSDN_TORCH_VERSION}")
if(NOT OSDN_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "LibTorch in ${_osdn_torch_root} is version '${OSDN_TORCH_VERSION}', 2.11 is needed. "
                      "Run scripts/setup.sh, or pass -DLIBTORCH_ROOT=/path/to/torch-2.11")
endif()
message(STATUS "osdn: LibTorch ${OSDN_TORCH_VERSION} in ${_osdn_torch_root}")
set(OSDN_TORCH_LIB ${_osdn_torch_root}/lib)

# What LibTorch's own libraries need lies beside it (nvidia/*/lib of the wheels) or in the CUDA toolkit.
file(GLOB OSDN_TORCH_SIBLINGS ${_osdn_torch_root}/../nvidia/*/lib)
set(OSDN_RPATH ${OSDN_TORCH_LIB})
if(OSDN_HAS_CUDA)
  list(APPEND OSDN_RPATH ${CUDAToolkit_LIBRARY_DIR})
endif()
list(APPEND OSDN_RPATH ${OSDN_TORCH_SIBLINGS})
set(CMAKE_BUILD_RPATH ${OSDN_RPATH})

function(_osdn_torch_library name)
  add_library(libtorch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(libtorch::${name} PROPERTIES IMPORTED_LOCATION ${OSDN_TORCH_LIB}/lib${name}.so)
endfunction()
_osdn_torch_library(c10)
_osdn_torch_library(torch_cpu)

add_library(libtorch_cpu INTERFACE)
add_library(libtorch::cpu ALIAS libtorch_cpu)
target_include_directories(libtorch_cpu SYSTEM INTERFACE
  ${_osdn_torch_root}/include ${_osdn_torch_root}/include/torch/csrc/api/include)
target_link_libraries(libtorch_cpu INTERFACE libtorch::torch_cpu libtorch::c10)
# The linker must not ask for the libraries behind LibTorch's: they are found at run time through the rpath.
target_link_options(libtorch_cpu INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags)

add_library(libtorch_cuda INTERFACE)
add_library(libtorch::cuda ALIAS libtorch_cuda)
target_link_libraries(libtorch_cuda INTERFACE libtorch::cpu)
if(OSDN_HAS_CUDA)
  _osdn_torch_library(c10_cuda)
  _osdn_torch_library(torch_cuda)
  # torch_cuda registers itself at load time; nothing references it by symbol.
  target_link_libraries(libtorch_cuda INTERFACE -Wl,--no-as-needed libtorch::torch_cuda -Wl,--as-needed libtorch::c10_cuda)
endif()
