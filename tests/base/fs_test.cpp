#include "base/fs.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/catch.h"

namespace fs_test {

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

template <typename Function>
std::string environment_error(Function function) {
  try {
    function();
  } catch (const osdn::EnvironmentError& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Exit status of a forked child that runs `body`; 99 when that throws.
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace fs_test

TEST_CASE("atomic_write replaces a file whole and leaves nothing beside it", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x";
  osdn::atomic_write(path, "first");
  osdn::atomic_write(path, std::string("sec\0ond", 7));
  CHECK(osdn::read_file(path) == std::string("sec\0ond", 7));
  CHECK(fs_test::names_in(directory.path()) == std::vector<std::string>{"x"});
}

TEST_CASE("a failing atomic_write keeps the old content and removes its own file", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x";
  osdn::atomic_write(path, "old");
  const int code = fs_test::in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      osdn::atomic_write(path, std::string(5000, 'n'));
    } catch (const osdn::EnvironmentError& failure) {
      return fs_test::contains(failure.what(), "writing 5000 bytes failed: File too large") ? 3 : 4;
    }
    return 0;
  });
  CHECK(code == 3);
  CHECK(osdn::read_file(path) == "old");
  CHECK(fs_test::names_in(directory.path()) == std::vector<std::string>{"x"});

  std::filesystem::create_directory(directory.path() + "/d");
  CHECK_THROWS_AS(osdn::atomic_write(directory.path() + "/d", "text"), osdn::EnvironmentError);
  CHECK(fs_test::names_in(directory.path()) == std::vector<std::string>{"d", "x"});
}

TEST_CASE("errors of files name the path, the attempt and the system's reason", "[fs]") {
  const std::string reading = fs_test::environment_error([] { osdn::read_file("/nonexistent/x"); });
  CHECK(reading == "/nonexistent/x: cannot open for reading: No such file or directory");
  CHECK(fs_test::contains(fs_test::environment_error([] { osdn::read_file("/tmp"); }), "found a directory"));
  CHECK(fs_test::contains(fs_test::environment_error([] { osdn::File::create("/nonexistent/x"); }),
                          "for writing"));
  osdn::File full = osdn::File::create("/dev/full");
  CHECK(fs_test::contains(fs_test::environment_error([&] { full.write("abc"); }),
                          "/dev/full: writing 3 bytes failed: No space left on device"));
  CHECK(fs_test::contains(fs_test::environment_error([] { osdn::create_directories("/dev/null/x"); }),
                          "/dev/null/x"));
}

TEST_CASE("a file reads, appends, truncates and moves", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x";
  osdn::File::create(path).write("hello ");
  {
    osdn::File file = osdn::File::open_for_appending(path);
    file.write("world");
    file.sync();
    CHECK(file.size_bytes() == 11);
    osdn::File moved = std::move(file);
    moved.truncate(8);
    CHECK(moved.size_bytes() == 8);
    CHECK(moved.path() == path);
  }
  osdn::File file = osdn::File::open_for_reading(path);
  char buffer[16] = {};
  CHECK(file.read(buffer, 5) == 5);
  CHECK(file.read(buffer + 5, 11) == 3);
  CHECK(std::string(buffer) == "hello wo");
  CHECK(file.read(buffer, 1) == 0);
  file = osdn::File::open_for_reading(path);
  CHECK(file.read(buffer, 1) == 1);
}

TEST_CASE("files whose size the system does not tell are read to their end", "[fs]") {
  CHECK(fs_test::contains(osdn::read_file("/proc/self/status"), "VmRSS"));
}

TEST_CASE("exchanging two directories swaps their contents", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string a = directory.path() + "/a";
  const std::string b = directory.path() + "/b";
  osdn::create_directories(a + "/one");
  osdn::create_directories(b + "/two");
  osdn::durable_exchange(a, b);
  CHECK(fs_test::names_in(a) == std::vector<std::string>{"two"});
  CHECK(fs_test::names_in(b) == std::vector<std::string>{"one"});
  CHECK_THROWS_AS(osdn::durable_exchange(directory.path() + "/absent", b), osdn::EnvironmentError);
}

TEST_CASE("free space is that of the nearest existing parent", "[fs]") {
  const osdn::TemporaryDirectory directory;
  CHECK(osdn::free_space_bytes(directory.path()) > 0);
  CHECK(osdn::free_space_bytes(directory.path() + "/not/yet/there") > 0);
  CHECK(osdn::free_space_bytes("relative/not/there") > 0);
}

TEST_CASE("a lock excludes a second holder, tells who has it, and ends with its process", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/lock";
  {
    const auto held = osdn::FileLock::try_acquire(path, nullptr);
    REQUIRE(held.has_value());
    std::string holder;
    CHECK_FALSE(osdn::FileLock::try_acquire(path, &holder).has_value());
    CHECK(fs_test::contains(holder, std::to_string(::getpid())));
  }
  CHECK(osdn::FileLock::try_acquire(path, nullptr).has_value());
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = osdn::FileLock::try_acquire(path, nullptr);
    (void)!::write(ready[1], held ? "y" : "n", 1);
    ::pause();
    ::_exit(0);
  }
  char answer = 0;
  REQUIRE(::read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK_FALSE(osdn::FileLock::try_acquire(path, nullptr).has_value());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(osdn::FileLock::try_acquire(path, nullptr).has_value());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a lock that ends in order leaves no name behind, a killed one is taken over", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/lock";
  {
    const auto held = osdn::FileLock::try_acquire(path, nullptr);
    REQUIRE(held.has_value());
    CHECK(osdn::read_file(path).find("process ") == 0);
  }
  CHECK(osdn::read_file(path).empty());
  // As after a kill, on this host or another: the kernel's lock is gone, so the name does not count.
  for (const char* stale : {"process 1 on elsewhere", "process 999999999 on here", "nonsense"}) {
    osdn::atomic_write(path, stale);
    CHECK(osdn::FileLock::try_acquire(path, nullptr).has_value());
  }
}

TEST_CASE("a missing path is created whole and an existing one left alone", "[fs]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/a/b//c/";
  osdn::create_directories(path);
  osdn::create_directories(path);
  CHECK(std::filesystem::is_directory(directory.path() + "/a/b/c"));
  osdn::atomic_write(directory.path() + "/a/file", "text");
  const std::string message =
      fs_test::environment_error([&] { osdn::create_directories(directory.path() + "/a/file/d"); });
  CHECK(fs_test::contains(message, directory.path() + "/a/file/d: cannot create the directory " +
                                       directory.path() + "/a/file: File exists"));
}

TEST_CASE("a temporary directory goes with everything in it", "[fs]") {
  std::string path;
  {
    const osdn::TemporaryDirectory directory;
    path = directory.path();
    osdn::create_directories(path + "/a/b");
    osdn::atomic_write(path + "/a/b/c", "x");
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("glob results are sorted bytewise and a plain name yields itself when it exists", "[fs]") {
  const osdn::TemporaryDirectory directory;
  for (const char* name : {"b-10.h5", "b-9.h5", "B-1.h5", "\xC3\xA9.h5", "a.txt"})
    osdn::atomic_write(directory.path() + "/" + name, "");
  const std::string root = directory.path() + "/";
  CHECK(osdn::glob_paths(root + "*.h5") ==
        std::vector<std::string>{root + "B-1.h5", root + "b-10.h5", root + "b-9.h5", root + "\xC3\xA9.h5"});
  CHECK(osdn::glob_paths(root + "a.txt") == std::vector<std::string>{root + "a.txt"});
  CHECK(osdn::glob_paths(root + "none*").empty());
  CHECK(osdn::glob_paths(root + "none").empty());
}
