# osdn_embed(TARGET FILE SYMBOL): compiles the file's bytes into the target as osdn::embedded::SYMBOL and SYMBOLSize.
function(osdn_embed target file symbol)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_${symbol}.cpp)
  set(script ${CMAKE_SOURCE_DIR}/cmake/EmbedFile.cmake)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${file} -DOUTPUT=${output} -DSYMBOL=${symbol} -P ${script}
    DEPENDS ${file} ${script} VERBATIM)
  set_source_files_properties(${output} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE ${output})
endfunction()
