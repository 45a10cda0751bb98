# osdn_layer(NAME DEPS ... PRIVATE ... [TORCH]): one static library per layer, made of every .cpp below the folder.
#   DEPS     the layers that its headers may include (scripts/check_layers.sh holds the table)
#   PRIVATE  third-party targets that stay behind its headers
#   TORCH    its sources include tensor/torch.h
#   ONLY     these sources alone, named without .cpp
add_library(osdn_options INTERFACE)
target_compile_options(osdn_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -g1>)
# fmt header-only everywhere: LibTorch bundles a newer fmt than the distribution's library.
target_compile_definitions(osdn_options INTERFACE FMT_HEADER_ONLY=1 OSDN_VERSION="${PROJECT_VERSION}")
if(OSDN_WERROR)
  target_compile_options(osdn_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 at -O3 misreads std::string (-Wrestrict, GCC bug 105651) and std::optional (-Wmaybe-uninitialized); the other
  # two see through inlining into headers that are not ours, and are shown but never fatal.
  target_compile_options(osdn_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-restrict>)
endif()
if(OSDN_SANITIZE)
  # LibTorch is not instrumented, so checks that need the other side's view of an object (vptr) would misfire.
  # -O1 keeps stack traces readable and halves the time to compile against -O3.
  target_compile_options(osdn_options INTERFACE
    -fsanitize=${OSDN_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer -fno-sanitize-recover=all -O1)
  target_link_options(osdn_options INTERFACE -fsanitize=${OSDN_SANITIZE})
endif()
# The link is what a one-line change waits for; lld takes a fraction of ld's time.
find_program(OSDN_LLD ld.lld)
if(OSDN_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_link_options(osdn_options INTERFACE -fuse-ld=lld)
endif()
if(OSDN_HAS_CUDA)
  target_compile_definitions(osdn_options INTERFACE OSDN_HAS_CUDA=1)
endif()

function(osdn_torch_sources target)
  if(OSDN_PCH)
    if(target STREQUAL "osdn_tensor")
      target_precompile_headers(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src/tensor/torch.h)
    else()
      target_precompile_headers(${target} REUSE_FROM osdn_tensor)
      get_target_property(kind ${target} TYPE)
      if(kind STREQUAL "EXECUTABLE")
        # The header was compiled with -fPIC; clang refuses it in a unit compiled with -fPIE.
        set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
        target_compile_options(${target} PRIVATE -fPIC)
      endif()
      # Executables compile with -fPIE, which clang does not let share the libraries' header; the later flag wins.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
    endif()
  endif()
endfunction()

function(osdn_layer name)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS;PRIVATE;ONLY" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(ARG_ONLY)
    list(TRANSFORM ARG_ONLY REPLACE "(.+)" "${CMAKE_CURRENT_SOURCE_DIR}/\\1.cpp" OUTPUT_VARIABLE sources)
  endif()
  list(FILTER sources EXCLUDE REGEX "main\\.cpp$")
  if(OSDN_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "_nocuda\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  endif()
  add_library(osdn_${name} STATIC ${sources})
  target_include_directories(osdn_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(osdn_${name} PUBLIC osdn_options PRIVATE ${ARG_PRIVATE})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(osdn_${name} PUBLIC osdn_${dep})
  endforeach()
  if(ARG_TORCH)
    osdn_torch_sources(osdn_${name})
  endif()
  if(OSDN_UNITY)
    set_target_properties(osdn_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
    # Objects of their own, so that tests can link files of theirs in the place of these.
    list(FILTER sources INCLUDE REGEX "/tensor/.*_(no)?cuda\\.cpp$")
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
