#include "dist/detail/shared_page.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tests/support/catch.h"

namespace osdn::dist::detail {

TEST_CASE("two openings of a shared page are the same memory, zero at first, that outlives its name",
          "[shared_page]") {
  const std::string name = SharedPage::new_name();
  SharedPage made(name, 100, SharedPage::Role::kMaker);
  CHECK(made.bytes() >= 100);
  const std::vector<uint8_t> zeros(made.bytes());
  CHECK(std::memcmp(made.data(), zeros.data(), made.bytes()) == 0);
  const SharedPage guest(name, 100, SharedPage::Role::kGuest);
  REQUIRE(guest.data() != made.data());
  made.remove_name();
  static_cast<uint8_t*>(made.data())[99] = 7;
  CHECK(static_cast<const uint8_t*>(guest.data())[99] == 7);
  CHECK_THROWS_AS(SharedPage(name, 100, SharedPage::Role::kGuest), EnvironmentError);
}

TEST_CASE("a shared page is refused under a name that is taken, and its maker's end frees the name",
          "[shared_page]") {
  const std::string name = SharedPage::new_name();
  CHECK(SharedPage::new_name() != name);
  {
    const SharedPage made(name, 1, SharedPage::Role::kMaker);
    CHECK_THROWS_AS(SharedPage(name, 1, SharedPage::Role::kMaker), EnvironmentError);
    const SharedPage guest(name, 1, SharedPage::Role::kGuest);
  }
  const SharedPage again(name, 1, SharedPage::Role::kMaker);
  CHECK(static_cast<const uint8_t*>(again.data())[0] == 0);
}

}  // namespace osdn::dist::detail
