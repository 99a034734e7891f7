# One test binary per folder of csrc, from the *_test.cc beside the sources.
find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h REQUIRED)
enable_testing()
foreach(folder base kernels iree engine)
  file(GLOB sources CONFIGURE_DEPENDS csrc/${folder}/*_test.cc)
  if(sources)
    set(name ${folder}_test)
    add_executable(${name} ${sources} csrc/testing/test_main.cc)
    target_include_directories(${name} SYSTEM PRIVATE ${DOCTEST_INCLUDE_DIR})
    target_link_libraries(${name} PRIVATE pyvlm_testing pyvlm_engine)
    # The comparisons with references run on one thread: nothing for the thread sanitizer, and slow.
    set(filter)
    if(folder STREQUAL "kernels" AND PYVLM_SANITIZE STREQUAL "thread")
      set(filter "--test-case=*run at once*,scratch*,*symbol*")
    endif()
    add_test(NAME ${name} COMMAND ${name} ${filter})
    # Tests ask for impossible sizes: allocation has to fail as it does without a sanitizer.
    set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT
      "ASAN_OPTIONS=allocator_may_return_null=1;TSAN_OPTIONS=allocator_may_return_null=1")
  endif()
endforeach()
