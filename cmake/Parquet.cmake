# The reader of Parquet files, lib/osdn_parquet: a program of its own, built where Arrow C++ is found (OSDN_PARQUET=AUTO),
# always (ON) or never (OFF). Without it `osdn prepare` refuses .parquet files and says why.
# Order: -DARROW_ROOT, $ARROW_ROOT, .deps/arrow (scripts/setup.sh takes it out of PyPI's pyarrow wheel), the pyarrow package
# of python3. For a bundle: cmake --install BUILD --component parquet --prefix DIR, which adds 50 MB (stripped).
set(OSDN_PARQUET AUTO CACHE STRING "AUTO, ON or OFF: build the reader of Parquet files with Arrow C++")
set_property(CACHE OSDN_PARQUET PROPERTY STRINGS AUTO ON OFF)

set(_osdn_arrow_include "")
set(_osdn_arrow_candidates "")
if(OSDN_PARQUET)
  set(_osdn_arrow_candidates ${ARROW_ROOT} $ENV{ARROW_ROOT} ${CMAKE_SOURCE_DIR}/.deps/arrow)
  if(OSDN_PYTHON3)
    execute_process(
      COMMAND ${OSDN_PYTHON3} -c "import importlib.util as u; s = u.find_spec('pyarrow'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE _osdn_arrow_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _osdn_arrow_candidates ${_osdn_arrow_python})
  endif()
  foreach(_candidate IN LISTS _osdn_arrow_candidates)
    # A tree of its own has its libraries in lib/, a wheel beside its modules.
    file(GLOB _arrow ${_candidate}/lib/libarrow.so.*00 ${_candidate}/libarrow.so.*00)
    file(GLOB _parquet ${_candidate}/lib/libparquet.so.*00 ${_candidate}/libparquet.so.*00)
    list(LENGTH _arrow _arrow_count)
    list(LENGTH _parquet _parquet_count)
    if(NOT _osdn_arrow_include AND _arrow_count EQUAL 1 AND _parquet_count EQUAL 1 AND EXISTS ${_candidate}/include/parquet/file_reader.h)
      set(_osdn_arrow_include ${_candidate}/include)
      set(_osdn_arrow_library ${_arrow})
      set(_osdn_parquet_library ${_parquet})
    endif()
  endforeach()
endif()

if(_osdn_arrow_include)
  message(STATUS "osdn: Arrow in ${_osdn_arrow_include}: .parquet can be read")
  add_library(osdn_arrow INTERFACE)
  target_include_directories(osdn_arrow SYSTEM INTERFACE ${_osdn_arrow_include})
  target_link_libraries(osdn_arrow INTERFACE ${_osdn_parquet_library} ${_osdn_arrow_library})
  get_filename_component(_osdn_arrow_lib ${_osdn_arrow_library} DIRECTORY)

  add_executable(osdn_parquet ${CMAKE_SOURCE_DIR}/src/data/detail/parquet_main.cpp)
  target_include_directories(osdn_parquet PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(osdn_parquet PRIVATE osdn_options osdn_arrow)
  set_target_properties(osdn_parquet PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib BUILD_RPATH ${_osdn_arrow_lib} INSTALL_RPATH $ORIGIN)
  install(TARGETS osdn_parquet RUNTIME DESTINATION lib COMPONENT parquet EXCLUDE_FROM_ALL)
  install(FILES ${_osdn_arrow_library} ${_osdn_parquet_library} DESTINATION lib COMPONENT parquet EXCLUDE_FROM_ALL)
elseif(OSDN_PARQUET STREQUAL "ON")
  message(FATAL_ERROR "Arrow C++ not found (OSDN_PARQUET=ON). Run scripts/setup.sh, or pass -DARROW_ROOT=/path with include/ "
                      "and lib/. Looked in: ${_osdn_arrow_candidates}")
else()
  message(STATUS "osdn: without Arrow: .parquet files cannot be read (scripts/setup.sh fetches it)")
endif()
