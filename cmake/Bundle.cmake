# `cmake --install BUILD --prefix DIR --strip`: a folder that runs on another machine (docs/install.md). scripts/bundle.sh
# calls it and adds what CMake does not know.
#   bin/osdn       launcher: finds LibTorch, then becomes libexec/osdn
#   libexec/osdn   the program, which looks for libraries in ../lib first
#   lib/           the libraries it needs, by the names the loader asks for, and theirs; neither glibc, which every machine
#                  has, nor LibTorch and CUDA, which come with LibTorch
#   lib/runtime/   the compiler's C++ runtime, which the launcher takes where the machine's is older or absent
# The rpath must stay a DT_RPATH (LibTorch.cmake asks the linker for it): unlike DT_RUNPATH it also serves the libraries
# of lib/ when they look for each other.
set_target_properties(osdn PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
install(TARGETS osdn RUNTIME DESTINATION libexec)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/scripts/bundle_launcher.sh DESTINATION bin RENAME osdn)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION . FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION . FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION .)

# Which libraries those are is only known once the program is linked, hence at installation. Copies under the name in
# NEEDED instead of links: a bundle may travel through archives and file systems that keep no links.
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES
    EXECUTABLES "${CMAKE_INSTALL_PREFIX}/libexec/osdn"
    RESOLVED_DEPENDENCIES_VAR resolved
    UNRESOLVED_DEPENDENCIES_VAR unresolved
    CONFLICTING_DEPENDENCIES_PREFIX conflicting
    PRE_EXCLUDE_REGEXES "^libtorch" "^libc10" "^lib(cud|cublas|cufft|curand|cusolver|cusparse|cufile|nccl|nvrtc|nvJitLink|cupti|nvshmem)"
                        "^lib(c|m|dl|rt|pthread|util|resolv|anl|stdc\\+\\+|gcc_s|gomp)\\.so" "^ld-linux"
    DIRECTORIES "$ENV{OSDN_BUNDLE_SEARCH}")
  if(unresolved)
    message(FATAL_ERROR "libraries of the bundle that are not on this machine: ${unresolved}")
  endif()
  foreach(library IN LISTS resolved)
    get_filename_component(name ${library} NAME)
    file(REAL_PATH ${library} file)
    file(MAKE_DIRECTORY "${CMAKE_INSTALL_PREFIX}/lib")
    file(COPY_FILE ${file} "${CMAKE_INSTALL_PREFIX}/lib/${name}" ONLY_IF_DIFFERENT)
    file(APPEND "${CMAKE_INSTALL_PREFIX}/lib/origins.txt" "${name} ${library}\n")
  endforeach()
]])
foreach(library libstdc++.so.6 libgcc_s.so.1)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${library} OUTPUT_VARIABLE file OUTPUT_STRIP_TRAILING_WHITESPACE)
  get_filename_component(file ${file} REALPATH)
  install(FILES ${file} DESTINATION lib/runtime RENAME ${library})
endforeach()
